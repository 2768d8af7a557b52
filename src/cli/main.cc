#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/process_limits.h"
#include "cli/commands.h"
#include "engine/engine.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

int Report(std::string_view message, ErrorCode code) {
  if (!message.empty()) Note("thimble: {}\n", message);
  return static_cast<int>(code);
}

// Which limit of the process can be behind an error of the system.
std::string ExplainRefusal(const std::error_code& code) {
  const ProcessLimits limits = ReadProcessLimits();
  if (code == std::errc::resource_unavailable_try_again) return ExplainThreadLimits(limits);
  if (code == std::errc::not_enough_memory) return ExplainMemoryLimits(limits);
  if (code == std::errc::file_too_large) return ExplainFileSizeLimit(limits);
  const bool lacks_files =
      code == std::errc::too_many_files_open || code == std::errc::too_many_files_open_in_system;
  return lacks_files ? ExplainFileLimits(limits) : std::string();
}

// Ends as a program does whose reader closes the pipe: without a word, by SIGPIPE.
[[noreturn]] void EndByClosedPipe() {
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
  std::_Exit(128 + SIGPIPE);
}

void AddCommands(CLI::App& program) {
  program.footer(
      "Try:\n  thimble run -p \"In the beginning\"\n  thimble run -m DIR -p TEXT --memory 1.5G\n"
      "Exit codes: 0 fine, 1 failed while running, 2 wrong usage, 3 bad or unsupported model, 4 "
      "over "
      "the memory budget, 130 interrupted.");
  program.set_version_flag(
      "--version",
      [] { return fmt::format("thimble {} ({})", THIMBLE_VERSION, BestKernels().simd); },
      "Print the version and the SIMD instructions in use");
  program.require_subcommand(1);
  program.get_formatter()->column_width(32);
  AddRunCommand(program);
  AddChatCommand(program);
  AddServeCommand(program);
  AddInspectCommand(program);
  AddTokenizeCommand(program);
  AddDetokenizeCommand(program);
  AddEvalCommand(program);
  AddPlanCommand(program);
  AddDoctorCommand(program);
  AddBenchCommand(program);
  AddPackCommand(program);
  AddVerifyCommand(program);
  AddSynthCommand(program);
}

// What --help and --version ask for.
void PrintHelp(const CLI::App& program, const CLI::ParseError& asked) {
  std::ostringstream out;
  std::ostringstream err;
  program.exit(asked, out, err);
  Print(out.str());
}

void Run(CLI::App& program, int argc, char** argv) {
  try {
    AdaptProcessLimits();
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    if (asked) return PrintHelp(program, error);
    throw Error(ErrorCode::kUsage,
                fmt::format("{}\nTry 'thimble --help' or 'thimble COMMAND --help'.", error.what()));
  }
}

int Main(int argc, char** argv) {
  OpenStandardDescriptors();
  // A closed pipe is an error of the write: a session can still be saved.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    CLI::App program("Thimble runs mixture-of-experts models that are far larger than memory.",
                     "thimble");
    AddCommands(program);
    Run(program, argc, argv);
  } catch (const StandardOutputError& error) {
    if (error.reader_has_gone()) EndByClosedPipe();
    return Report(error.what(), error.code());
  } catch (const Error& error) {
    const bool interrupted = error.code() == ErrorCode::kInterrupted;
    return Report(interrupted ? "interrupted" : error.what(), error.code());
  } catch (const std::bad_alloc&) {
    return Report("the system refused memory" + ExplainMemoryLimits(ReadProcessLimits()),
                  ErrorCode::kRuntime);
  } catch (const std::system_error& error) {
    return Report(error.what() + ExplainRefusal(error.code()), ErrorCode::kRuntime);
  } catch (const std::exception& error) {
    return Report(error.what(), ErrorCode::kRuntime);
  }
  return 0;
}

}  // namespace
}  // namespace thimble::cli

int main(int argc, char** argv) {
  try {
    return thimble::cli::Main(argc, argv);
  } catch (...) {
    return static_cast<int>(
        thimble::ErrorCode::kRuntime);  // the report itself could not be printed
  }
}
