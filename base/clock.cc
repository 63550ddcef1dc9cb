#include "base/clock.h"

#include <fmt/format.h>

namespace kcoral {
namespace {

class SystemClock : public Clock {
 public:
  SteadyTime now() const override { return std::chrono::steady_clock::now(); }
  WallTime wall_now() const override {
    return std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now());
  }
};

/// Takes what it reads away from the front of a text.
class TimeReader {
 public:
  explicit TimeReader(std::string_view text) : rest_(text) {}

  /// -1 if there are not that many digits.
  int digits(size_t count) {
    int value = 0;
    for (size_t i = 0; i < count; ++i) {
      if (!at_digit()) return -1;
      value = value * 10 + (take() - '0');
    }
    return value;
  }
  bool literal(char wanted) {
    if (!rest_.starts_with(wanted)) return false;
    take();
    return true;
  }
  bool letter(char upper) { return literal(upper) || literal(static_cast<char>(upper - 'A' + 'a')); }
  /// Of a fraction's digits, the microseconds; -1 if there is no digit.
  int microseconds() {
    int value = 0;
    int count = 0;
    for (; at_digit(); ++count) {
      const int digit = take() - '0';
      if (count < 6) value = value * 10 + digit;
    }
    for (int i = count; i < 6; ++i) value *= 10;
    return count == 0 ? -1 : value;
  }
  bool at_end() const { return rest_.empty(); }

 private:
  bool at_digit() const { return !rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9'; }
  char take() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }

  std::string_view rest_;
};

std::optional<std::chrono::sys_days> read_date(TimeReader& reader) {
  const int year = reader.digits(4);
  if (!reader.literal('-')) return std::nullopt;
  const int month = reader.digits(2);
  if (!reader.literal('-')) return std::nullopt;
  const int day = reader.digits(2);
  if (year < 0 || month < 0 || day < 0) return std::nullopt;
  const auto date = std::chrono::year(year) / month / day;
  if (!date.ok()) return std::nullopt;
  return std::chrono::sys_days(date);
}

/// "hh:mm", of a time of day or an offset.
std::optional<std::chrono::minutes> read_minutes(TimeReader& reader) {
  const int hours = reader.digits(2);
  if (!reader.literal(':')) return std::nullopt;
  const int minutes = reader.digits(2);
  if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59) return std::nullopt;
  return std::chrono::minutes(hours * 60 + minutes);
}

/// ":ss" with an optional fraction.
std::optional<std::chrono::microseconds> read_seconds(TimeReader& reader) {
  if (!reader.literal(':')) return std::nullopt;
  const int seconds = reader.digits(2);
  if (seconds < 0 || seconds > 59) return std::nullopt;
  const int fraction = reader.literal('.') ? reader.microseconds() : 0;
  if (fraction < 0) return std::nullopt;
  return std::chrono::seconds(seconds) + std::chrono::microseconds(fraction);
}

std::optional<std::chrono::minutes> read_offset(TimeReader& reader) {
  if (reader.letter('Z')) return std::chrono::minutes(0);
  const bool ahead = reader.literal('+');
  if (!ahead && !reader.literal('-')) return std::nullopt;
  const auto offset = read_minutes(reader);
  if (!offset) return std::nullopt;
  return ahead ? *offset : -*offset;
}

}  // namespace

Clock& Clock::system() {
  static SystemClock clock;
  return clock;
}

std::string rfc3339(WallTime time) {
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), clock.hours().count(),
                     clock.minutes().count(), clock.seconds().count(), clock.subseconds().count());
}

std::optional<WallTime> parse_rfc3339(std::string_view text) {
  TimeReader reader(text);
  const auto date = read_date(reader);
  if (!date || !reader.letter('T')) return std::nullopt;
  const auto minutes = read_minutes(reader);
  if (!minutes) return std::nullopt;
  const auto seconds = read_seconds(reader);
  if (!seconds) return std::nullopt;
  const auto offset = read_offset(reader);
  if (!offset || !reader.at_end()) return std::nullopt;
  return WallTime(*date + *minutes - *offset + *seconds);
}

}  // namespace kcoral
