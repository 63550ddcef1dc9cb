#include <cstdio>

#include "server/backup_command.h"
#include "server/options.h"
#include "server/server.h"

int main(int argc, char** argv) {
  const kcoral::server::CommandLine command = kcoral::server::parse_command_line(argc, argv);
  if (command.backup) return kcoral::server::run_backup(*command.backup);
  if (!command.run_server) {
    std::fputs(command.text.c_str(), command.exit_code == 0 ? stdout : stderr);
    return command.exit_code;
  }
  return kcoral::server::run_server(command.server);
}
