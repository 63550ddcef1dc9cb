#include "executor/frame_channel.h"

#include <gtest/gtest.h>

#include <thread>

namespace kcoral::executor {
namespace {

class FrameChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = EventLoop::create();
    ASSERT_TRUE(made.has_value());
    loop = std::move(*made);
    auto sockets = make_frame_sockets();
    ASSERT_TRUE(sockets.has_value());
    peer = std::move(sockets->theirs);
    auto created = FrameChannel::create(*loop, std::move(sockets->ours),
                                        {[this](Frame frame) {
                                           frames.push_back(frame.type());
                                           if (on_frame) on_frame();
                                         },
                                         [this](std::optional<Error> error) {
                                           frames.push_back(error ? "error" : "closed");
                                           if (on_frame) on_frame();
                                           loop->stop();
                                         }});
    ASSERT_TRUE(created.has_value());
    channel = std::move(*created);
    // A test that hangs says so.
    loop->run_after(std::chrono::seconds(30), [this] {
      ADD_FAILURE() << "nothing happened";
      loop->stop();
    });
  }

  std::unique_ptr<EventLoop> loop;
  UniqueFd peer;
  std::unique_ptr<FrameChannel> channel;
  std::vector<std::string> frames;
  std::function<void()> on_frame;
};

using Names = std::vector<std::string>;

TEST_F(FrameChannelTest, FramesComeInOrderThenTheEndOnce) {
  for (const char* type : {"a", "b", "c"}) ASSERT_TRUE(send_frame(peer.get(), {{"type", type}}).has_value());
  peer.reset();
  loop->run();
  EXPECT_EQ(frames, (Names{"a", "b", "c", "closed"}));
  EXPECT_TRUE(channel->receive_all());
  channel->send({{"type", "x"}});
  EXPECT_EQ(frames.size(), 4U);
}

TEST_F(FrameChannelTest, WhatIsNoFrameEndsIt) {
  ASSERT_TRUE(send_frame(peer.get(), {{"type", "a"}}).has_value());
  ASSERT_EQ(::write(peer.get(), "junk", 4), 4);
  ASSERT_TRUE(send_frame(peer.get(), {{"type", "b"}}).has_value());
  loop->run();
  EXPECT_EQ(frames, (Names{"a", "error"}));
}

TEST_F(FrameChannelTest, HandlerMayDestroyTheChannel) {
  for (const char* type : {"a", "b"}) ASSERT_TRUE(send_frame(peer.get(), {{"type", type}}).has_value());
  on_frame = [this] {
    channel.reset();
    loop->stop();
  };
  loop->run();
  EXPECT_EQ(frames, (Names{"a"}));
}

TEST_F(FrameChannelTest, EndHandlerMayDestroyTheChannel) {
  peer.reset();
  on_frame = [this] { channel.reset(); };
  loop->run();
  EXPECT_EQ(frames, (Names{"closed"}));
}

TEST_F(FrameChannelTest, QueuesWhileThePeerDoesNotReadAndKeepsTheOrder) {
  constexpr int kFrames = 1000;
  auto content = SealedMemory::copy_of("content");
  ASSERT_TRUE(content.has_value());
  for (int i = 0; i < kFrames; ++i) {
    channel->send({{"type", "n"}, {"i", i}, {"filler", std::string(2000, 'x')}}, {*content});
  }
  EXPECT_GT(channel->queued_frames(), 0U);
  EXPECT_LT(channel->queued_frames(), static_cast<size_t>(kFrames));
  std::thread reader([&] {
    for (int i = 0; i < kFrames;) {
      Frame frame;
      const auto received = receive_frame(peer.get(), frame);
      ASSERT_TRUE(received.has_value());
      if (*received == Received::kNothing) {
        std::this_thread::yield();
        continue;
      }
      ASSERT_EQ(frame.body["i"], i++);
      ASSERT_EQ(frame.fds.size(), 1U);
    }
    peer.reset();
  });
  loop->run();
  reader.join();
  EXPECT_EQ(channel->queued_frames(), 0U);
  EXPECT_EQ(content->use_count(), 1);
}

TEST_F(FrameChannelTest, PeerThatDiedDropsTheQueueButIsStillHeard) {
  for (int i = 0; i < 1000; ++i) channel->send({{"type", "n"}, {"filler", std::string(2000, 'x')}});
  ASSERT_TRUE(send_frame(peer.get(), {{"type", "last"}}).has_value());
  peer.reset();
  channel->send({{"type", "n"}});
  loop->run();
  EXPECT_EQ(frames, (Names{"last", "closed"}));
}

TEST_F(FrameChannelTest, FinishSendingIsBounded) {
  for (int i = 0; i < 1000; ++i) channel->send({{"type", "n"}, {"filler", std::string(2000, 'x')}});
  channel->finish_sending(std::chrono::milliseconds(20));
  EXPECT_GT(channel->queued_frames(), 0U);
}

}  // namespace
}  // namespace kcoral::executor
