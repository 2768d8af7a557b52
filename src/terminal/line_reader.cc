#include "terminal/line_reader.h"

#include <fmt/format.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <iostream>

#include "base/error.h"
#include "terminal/interrupt.h"

namespace thimble {
namespace {

constexpr int kHistorySize = 1000;
constexpr const char* kQuotes = "\"\"\"";
// The terminal puts marks around what is pasted while this mode is on.
constexpr const char* kPasteOn = "\033[?2004h";
constexpr const char* kPasteOff = "\033[?2004l";
constexpr const char* kPasteBegins = "\033[200~";
constexpr std::wstring_view kPasteEnds = L"\033[201~";

// Reads one character. -1 with EINTR once a signal was counted.
int NextCharacter(wchar_t* character) {
  std::mbstate_t state = {};
  while (true) {
    std::array<pollfd, 2> waits = {{{STDIN_FILENO, POLLIN, 0}, {InterruptDescriptor(), POLLIN, 0}}};
    if (::poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) return -1;
    if (waits[1].revents != 0) {
      errno = EINTR;
      return -1;
    }
    if (waits[0].revents == 0) continue;
    char byte = 0;
    const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
    if (count <= 0) return static_cast<int>(count);
    const size_t length = std::mbrtowc(character, &byte, 1, &state);
    if (length <= 1) return 1;
    // Neither whole nor the beginning of a character: passed over.
    if (length == static_cast<size_t>(-1)) state = {};
  }
}

// Reads a paste to its end and inserts it where the cursor is.
unsigned char InsertPaste(EditLine* line, wint_t) {
  std::wstring sent;
  wchar_t character = 0;
  while (!sent.ends_with(kPasteEnds)) {
    if (el_wgetc(line, &character) != 1) return CC_EOF;
    sent += character;
  }
  sent.resize(sent.size() - kPasteEnds.size());
  const std::wstring text = PastedText(sent);
  return text.empty() || el_winsertstr(line, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

}  // namespace

std::wstring PastedText(std::wstring_view sent) {
  std::wstring text;
  for (size_t i = 0; i < sent.size(); ++i) {
    const wchar_t character = sent[i];
    const bool is_return = character == L'\r';
    if (is_return && i + 1 < sent.size() && sent[i + 1] == L'\n') continue;
    if (is_return || character == L'\n') {
      text += L'\n';
    } else if (character == L'\t' ||
               (character >= 0x20 && (character < 0x7f || character > 0x9f))) {
      text += character;
    }
  }
  while (text.ends_with(L'\n')) text.pop_back();
  return text;
}

struct LineReader::Editor {
  // Where standard output is not the terminal, it gets answers only.
  Editor()
      : screen(::isatty(STDOUT_FILENO) == 1 ? stdout : stderr),
        history(history_init()),
        line(NewLine(screen)) {
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kHistorySize);
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(line, EL_CLIENTDATA, this);
    el_set(line, EL_PROMPT, &ShowPrompt);
    el_set(line, EL_EDITOR, "emacs");
    el_set(line, EL_GETCFN, &ReadCharacter);
    el_set(line, EL_HIST, ::history, history);
    el_set(line, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(line, EL_ADDFN, "insert-paste", "Inserts a pasted text", &InsertPaste);
    el_set(line, EL_BIND, kPasteBegins, "insert-paste", nullptr);
    el_source(line, nullptr);
  }
  ~Editor() {
    el_end(line);
    history_end(history);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  static EditLine* NewLine(std::FILE* screen) {
    // Without a locale of UTF-8, libedit takes its characters for single bytes. A bare machine
    // names none, but has this one.
    std::setlocale(LC_CTYPE, "");
    if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
    return el_init("thimble", stdin, screen, stderr);
  }
  void Put(const char* text) const {
    std::fputs(text, screen);
    std::fflush(screen);
  }
  static Editor& Of(EditLine* line) {
    Editor* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return *self;
  }
  static char* ShowPrompt(EditLine* line) { return Of(line).prompt.data(); }
  // libedit sets the terminal's mode only before it reads; marks of a paste make sense from then
  // on.
  static int ReadCharacter(EditLine* line, wchar_t* character) {
    Editor& self = Of(line);
    if (!self.ready) self.Put(kPasteOn);
    self.ready = true;
    return NextCharacter(character);
  }

  std::FILE* screen;
  History* history;
  EditLine* line;
  std::string prompt;
  bool ready = false;  // the terminal is in libedit's mode, and marks pastes
};

LineReader::LineReader() {
  if (::isatty(STDIN_FILENO) == 1) editor_ = std::make_unique<Editor>();
}

LineReader::~LineReader() = default;

std::optional<std::string> LineReader::ReadLine(const std::string& prompt) {
  if (editor_ != nullptr) return ReadEdited(prompt);
  std::string line;
  errno = 0;
  if (!std::getline(std::cin, line)) {
    if (std::ferror(stdin) == 0 || errno == EINTR) return std::nullopt;
    throw Error(ErrorCode::kRuntime,
                fmt::format("cannot read standard input: {}", std::strerror(errno)));
  }
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

std::optional<std::string> LineReader::ReadEdited(const std::string& prompt) {
  DrainInterrupts();
  if (Ending()) return std::nullopt;
  editor_->prompt = prompt;
  editor_->ready = false;
  el_resize(editor_->line);  // the window may have another size since the last line
  int count = 0;
  errno = 0;
  const char* text = el_gets(editor_->line, &count);
  const bool interrupted = errno == EINTR;
  editor_->Put(kPasteOff);
  if (text == nullptr || count <= 0) {
    if (!interrupted || Ending()) return std::nullopt;
    editor_->Put("^C\n");
    el_reset(editor_->line);
    return std::string();
  }
  std::string line = text;
  if (line.ends_with('\n')) line.pop_back();
  HistEvent event;
  if (!line.empty()) ::history(editor_->history, &event, H_ENTER, line.c_str());
  return line;
}

std::optional<std::string> LineReader::Read(const std::string& prompt) {
  auto line = ReadLine(prompt);
  if (!line) return std::nullopt;
  std::string message;
  if (*line == kQuotes) {
    for (bool first = true; (line = ReadLine("... ")) && *line != kQuotes; first = false) {
      message += (first ? "" : "\n") + *line;
    }
    return message;
  }
  // A pasted text is whole, whatever it ends with.
  const auto continues = [&] {
    return line && line->ends_with('\\') && line->find('\n') == std::string::npos;
  };
  while (continues()) {
    line->pop_back();
    message += *line + "\n";
    line = ReadLine("... ");
  }
  return message + line.value_or("");
}

}  // namespace thimble
