#include "executor/frame.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "schema/limits.h"

namespace kcoral::executor {
namespace {

using nlohmann::json;

size_t own_fds() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

/// Sends what send_frame would refuse to.
void send_packet(int socket, std::string_view packet, const std::vector<int>& fds = {}) {
  iovec bytes{const_cast<char*>(packet.data()), packet.size()};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * std::max<size_t>(fds.size(), 1)));
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  ASSERT_EQ(::sendmsg(socket, &message, 0), static_cast<ssize_t>(packet.size()));
}

class FrameTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = make_frame_sockets();
    ASSERT_TRUE(made.has_value());
    sockets = std::move(*made);
  }
  void expect_refused(std::string_view message) {
    const size_t before = own_fds();
    Frame frame;
    const auto received = receive_frame(sockets.ours.get(), frame);
    ASSERT_FALSE(received.has_value());
    EXPECT_EQ(received.error().kind, ErrorKind::kEngine);
    EXPECT_NE(received.error().message.find(message), std::string::npos) << received.error().message;
    EXPECT_EQ(own_fds(), before);
  }

  SocketPair sockets;
};

TEST_F(FrameTest, CarriesBodyAndDescriptors) {
  const json body{{"type", "blobs"}, {"text", "ä\n"}, {"number", 18446744073709551615u}};
  ASSERT_TRUE(send_frame(sockets.theirs.get(), body, {0, 1}).has_value());
  Frame frame;
  ASSERT_EQ(*receive_frame(sockets.ours.get(), frame), Received::kFrame);
  EXPECT_EQ(frame.body, body);
  EXPECT_EQ(frame.type(), "blobs");
  ASSERT_EQ(frame.fds.size(), 2U);
  for (const UniqueFd& fd : frame.fds) EXPECT_EQ(::fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(*receive_frame(sockets.ours.get(), frame), Received::kNothing);
}

TEST_F(FrameTest, SocketsAreAsPromised) {
  EXPECT_NE(::fcntl(sockets.ours.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(::fcntl(sockets.theirs.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(::fcntl(sockets.ours.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(::fcntl(sockets.theirs.get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(FrameTest, LargestFrameAndMostDescriptorsPass) {
  json body{{"type", "x"}, {"text", ""}};
  body["text"] = std::string(limits::kFrameBytesMax - body.dump().size(), 'x');
  ASSERT_TRUE(send_frame(sockets.theirs.get(), body, std::vector<int>(limits::kFrameFdsMax, 0)).has_value());
  Frame frame;
  ASSERT_EQ(*receive_frame(sockets.ours.get(), frame), Received::kFrame);
  EXPECT_EQ(frame.fds.size(), limits::kFrameFdsMax);
  EXPECT_EQ(frame.body, body);
}

TEST_F(FrameTest, SendingRefusesWhatIsTooLarge) {
  EXPECT_FALSE(send_frame(sockets.ours.get(), {{"type", std::string(limits::kFrameBytesMax, 'x')}}).has_value());
  EXPECT_FALSE(
      send_frame(sockets.ours.get(), {{"type", "x"}}, std::vector<int>(limits::kFrameFdsMax + 1, 0)).has_value());
}

TEST_F(FrameTest, TextThatIsNotUtf8IsReplaced) {
  ASSERT_TRUE(send_frame(sockets.theirs.get(), {{"type", "x"}, {"text", "a\xff"}}).has_value());
  Frame frame;
  ASSERT_EQ(*receive_frame(sockets.ours.get(), frame), Received::kFrame);
  EXPECT_EQ(frame.body["text"], "a\xef\xbf\xbd");
}

TEST_F(FrameTest, RefusesPacketsThatAreNoFrames) {
  const std::pair<std::string, const char*> cases[] = {
      {"x", "no JSON"},
      {std::string("\0", 1), "no JSON"},
      {"{\"type\":\"x\"", "no JSON"},
      {"{\"type\":\"\xff\"}", "no JSON"},
      {"{\"type\":\"x\"}{}", "no JSON"},
      {"[\"type\"]", "JSON object"},
      {"null", "JSON object"},
      {"{}", "\"type\""},
      {"{\"type\":1}", "\"type\""},
      {std::string(limits::kFrameBytesMax, '['), "no JSON"},
      {std::string(limits::kFrameBytesMax + 1, ' '), "no frame"},
      {std::string(3 * limits::kFrameBytesMax, ' '), "no frame"},
  };
  for (const auto& [packet, message] : cases) {
    send_packet(sockets.theirs.get(), packet, {0, 1, 2});
    expect_refused(message);
  }
}

TEST_F(FrameTest, RefusesTooManyDescriptorsAndClosesThem) {
  send_packet(sockets.theirs.get(), R"({"type":"x"})", std::vector<int>(limits::kFrameFdsMax + 1, 0));
  expect_refused("lost descriptors");
  send_packet(sockets.theirs.get(), R"({"type":"x"})", std::vector<int>(253, 0));
  expect_refused("lost descriptors");
}

TEST_F(FrameTest, WhatWasSentBeforeTheEndComesBeforeTheEnd) {
  // Unread packets at the peer make the kernel report a reset; what the peer had sent is still there.
  ASSERT_TRUE(send_frame(sockets.ours.get(), {{"type", "unread"}}).has_value());
  ASSERT_TRUE(send_frame(sockets.theirs.get(), {{"type", "last"}}).has_value());
  sockets.theirs.reset();
  Frame frame;
  ASSERT_EQ(*receive_frame(sockets.ours.get(), frame), Received::kFrame);
  EXPECT_EQ(frame.type(), "last");
  EXPECT_EQ(*receive_frame(sockets.ours.get(), frame), Received::kClosed);
  EXPECT_FALSE(send_frame(sockets.ours.get(), {{"type", "x"}}).has_value());
}

TEST_F(FrameTest, SendingWaitsForAReader) {
  constexpr int kFrames = 500;
  std::thread sender([&] {
    const std::string filler(4000, 'x');
    for (int i = 0; i < kFrames; ++i) {
      EXPECT_TRUE(send_frame(sockets.ours.get(), {{"type", "n"}, {"i", i}, {"filler", filler}}, {0, 1}).has_value());
    }
  });
  for (int i = 0; i < kFrames;) {
    Frame frame;
    const auto received = receive_frame(sockets.theirs.get(), frame);
    ASSERT_TRUE(received.has_value());
    if (*received == Received::kNothing) {
      std::this_thread::yield();
      continue;
    }
    EXPECT_EQ(frame.body["i"], i++);
  }
  sender.join();
}

TEST(ParseFrame, SurvivesDamagedFrames) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::string valid =
      R"({"type":"records","records":[{"at_us":17,"members":"\"event\":\"x\""}],"n":[1.5e3,null]})";
  for (int round = 0; round < 20000; ++round) {
    std::string packet = valid;
    for (unsigned i = 0; i <= random() % 4; ++i) {
      switch (random() % 3) {
        case 0:
          packet[random() % packet.size()] = static_cast<char>(random());
          break;
        case 1:
          packet.erase(random() % packet.size(), 1);
          break;
        default:
          packet.insert(random() % packet.size(), 1, "{}[]\",:0"[random() % 8]);
      }
    }
    const auto body = parse_frame(packet);
    EXPECT_TRUE(!body || body->at("type").is_string());
  }
}

}  // namespace
}  // namespace kcoral::executor
