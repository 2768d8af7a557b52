#include "server/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"

namespace thimble::server {

using Json = nlohmann::ordered_json;

std::string NewId(const std::string& prefix) {
  thread_local std::random_device device;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string id = prefix;
  for (int word = 0; word < 3; ++word) {
    uint32_t bits = device();
    for (int digit = 0; digit < 8; ++digit, bits >>= 4) id += kDigits[bits & 15];
  }
  return id;
}

int64_t UnixTime() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::vector<JobRequest> JobsOf(const ApiRequest& request) {
  const size_t num_jobs = request.num_choices * (1 + request.more_prompts.size());
  if (num_jobs > kMaxPrompts) {
    throw ApiError(400, fmt::format("n: expected at most {} answers to all prompts, found {}",
                                    kMaxPrompts, num_jobs));
  }
  if (request.num_choices > 1 && request.job.filter != nullptr) {
    throw ApiError(400, "n: expected 1 where the form of the answer is bound");
  }
  std::vector<JobRequest> jobs;
  for (size_t i = 0; i < num_jobs; ++i) {
    JobRequest job = request.job;
    const size_t prompt = i / request.num_choices;
    job.sampling.seed += i % request.num_choices;
    if (prompt > 0) {
      job.prompt = request.more_prompts[prompt - 1].ids;
      job.max_tokens = request.more_prompts[prompt - 1].max_tokens;
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

namespace {

JsonValue ParseBody(const std::string& body) {
  try {
    JsonValue value = ParseJson(body);
    if (!value.is_object()) throw ApiError(400, "the body must be a JSON object");
    return value;
  } catch (const Error& error) {
    throw ApiError(400, std::string("the body is ") + error.what());
  }
}

ApiRequest Read(Api api, const std::string& text, const ServedModel& model, bool count_only) {
  const JsonValue body = ParseBody(text);
  try {
    switch (api) {
      case Api::kChat:
        return ReadChatApi(body, model);
      case Api::kCompletions:
        return ReadCompletionsApi(body, model);
      case Api::kMessages:
        return ReadMessagesApi(body, model, count_only);
      case Api::kResponses:
        return ReadResponsesApi(body, model);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUsage) throw;
    throw ApiError(400, error.what());
  }
  return {};
}

const char* ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

ApiRequest ReadApiRequest(Api api, const std::string& body, const ServedModel& model) {
  return Read(api, body, model, false);
}

size_t CountTokens(Api api, const std::string& body, const ServedModel& model) {
  return Read(api, body, model, true).job.prompt.size();
}

std::unique_ptr<ApiAnswer> NewApiAnswer(Api api, const ServedModel& model,
                                        const ApiRequest& request) {
  switch (api) {
    case Api::kChat:
      return NewChatAnswer(model, request);
    case Api::kCompletions:
      return NewCompletionsAnswer(model, request);
    case Api::kMessages:
      return NewMessagesAnswer(model, request);
    case Api::kResponses:
      return NewResponsesAnswer(model, request);
  }
  return nullptr;
}

std::string NoteHeader(const std::vector<std::string>& notes) {
  constexpr size_t kMaxLength = 1000;
  std::string line;
  for (const std::string& note : notes) {
    if (!line.empty()) line += "; ";
    line += note;
  }
  if (line.size() > kMaxLength) line = line.substr(0, kMaxLength - 3) + "...";
  // Names of fields are the client's: a line break would begin another header.
  std::ranges::replace_if(
      line, [](char c) { return c < ' ' || c > '~'; }, '?');
  return line;
}

std::string WriteApiError(Api api, const ApiError& error) {
  Json inner = {{"message", error.what()}, {"type", ErrorType(error.status())}};
  Json json;
  if (api == Api::kMessages) {
    json = {{"type", "error"}, {"error", inner}};
  } else {
    inner["param"] = nullptr;
    inner["code"] = error.code().empty() ? Json() : Json(error.code());
    json = {{"error", inner}};
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace thimble::server
