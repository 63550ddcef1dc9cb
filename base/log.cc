#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace kcoral {

void start_log(const std::string& component) {
  auto logger = spdlog::stderr_color_mt(component);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %^%-5l%$ [%n] %v", spdlog::pattern_time_type::utc);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace kcoral
