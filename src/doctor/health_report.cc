#include "doctor/health_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace thimble {
namespace {

const char* NameOf(Verdict verdict) {
  constexpr const char* kNames[] = {"ok", "warn", "fail"};
  return kNames[static_cast<size_t>(verdict)];
}

}  // namespace

HealthCheck& HealthReport::Add(std::string name, Verdict verdict, std::string found,
                               std::string remedy) {
  HealthCheck check;
  check.name = std::move(name);
  check.verdict = verdict;
  check.found = std::move(found);
  check.remedy = std::move(remedy);
  checks.push_back(std::move(check));
  return checks.back();
}

const HealthCheck* HealthReport::Find(const std::string& name) const {
  const auto found = std::find_if(checks.begin(), checks.end(),
                                  [&](const HealthCheck& check) { return check.name == name; });
  return found == checks.end() ? nullptr : &*found;
}

const HealthCheck* HealthReport::FirstFailure() const {
  const auto found = std::find_if(checks.begin(), checks.end(), [](const HealthCheck& check) {
    return check.verdict == Verdict::kFail;
  });
  return found == checks.end() ? nullptr : &*found;
}

std::string HealthReport::Json() const {
  nlohmann::ordered_json json;
  json["checks"] = nlohmann::ordered_json::array();
  for (const HealthCheck& check : checks) {
    nlohmann::ordered_json line = {
        {"name", check.name}, {"status", NameOf(check.verdict)}, {"found", check.found}};
    if (!check.remedy.empty()) line["remedy"] = check.remedy;
    if (!check.figures.empty()) line["figures"] = check.figures;
    json["checks"].push_back(std::move(line));
  }
  json["healthy"] = FirstFailure() == nullptr;
  json["next"] = next;
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string HealthReport::Text() const {
  std::string text;
  for (const HealthCheck& check : checks) {
    text += fmt::format("{:<5} {:<12} {}\n", NameOf(check.verdict), check.name, check.found);
    if (!check.remedy.empty()) text += fmt::format("{:19}-> {}\n", "", check.remedy);
  }
  return text + "\nnext: " + next + "\n";
}

}  // namespace thimble
