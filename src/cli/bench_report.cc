#include "cli/bench_report.h"

#include <fmt/format.h>

#include "base/byte_size.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

const char* UnitName(Unit unit) {
  switch (unit) {
    case Unit::kBytes:
      return "bytes_per_s";
    case Unit::kFlops:
      return "flops";
    case Unit::kTokens:
      return "tokens_per_s";
  }
  return "";
}

const char* UnitSymbol(Unit unit) {
  switch (unit) {
    case Unit::kBytes:
      return "GB/s";
    case Unit::kFlops:
      return "GFLOP/s";
    case Unit::kTokens:
      return "tokens/s";
  }
  return "";
}

double InSymbol(Unit unit, double rate) { return unit == Unit::kTokens ? rate : rate / 1e9; }

std::string Row(const Measurement& measurement) {
  const auto figure = [&](double rate) {
    return fmt::format("{:.3g}", InSymbol(measurement.unit, rate));
  };
  const Spread& rate = measurement.rate;
  std::string row =
      fmt::format("  {:<31}{:>2} {:<8}{:>8} {:<9}{:<18}", measurement.name, measurement.num_threads,
                  measurement.num_threads == 1 ? "thread" : "threads", figure(rate.median),
                  UnitSymbol(measurement.unit),
                  fmt::format("({} to {})", figure(rate.least), figure(rate.most)));
  if (const auto share = measurement.Share()) {
    row += fmt::format("{:>5.0f} % of {}", 100 * *share, figure(*measurement.limit));
  }
  return row + "\n";
}

}  // namespace

void BenchReport::Begin(const std::string& part, const std::string& title) {
  part_ = part;
  if (!as_json_) Print(fmt::format("{}: {}\n", part, title));
}

nlohmann::ordered_json& BenchReport::AddResult(const Measurement& measurement) {
  nlohmann::ordered_json json = {{"part", part_},
                                 {"name", measurement.name},
                                 {"threads", measurement.num_threads},
                                 {"unit", UnitName(measurement.unit)},
                                 {"median", measurement.rate.median},
                                 {"least", measurement.rate.least},
                                 {"most", measurement.rate.most},
                                 {"rounds", measurement.rate.rounds},
                                 {"limit", nullptr},
                                 {"share", nullptr},
                                 {"verified", true}};  // or there would be no measurement
  if (const auto share = measurement.Share()) {
    json["limit"] = *measurement.limit;
    json["share"] = *share;
  }
  results_.push_back(std::move(json));
  return results_.back();
}

void BenchReport::Add(const Measurement& measurement) {
  AddResult(measurement);
  if (!as_json_) Print(Row(measurement));
}

void BenchReport::Add(const SweepMeasurement& sweep) {
  nlohmann::ordered_json& json = AddResult(sweep.speed);
  json["tokens"] = sweep.num_tokens;
  json["read_bytes_per_token"] = sweep.read_bytes;
  json["io_bound_share"] = sweep.io_bound_share;
  json["compute_bound_share"] = sweep.compute_bound_share;
  if (as_json_) return;
  Print(Row(sweep.speed));
  Print(fmt::format(
      "  rounds of {} tokens, {} read for each; the drive set the pace for {:.0f} % of the time, "
      "the cores for {:.0f} %\n",
      sweep.num_tokens, FormatBytes(static_cast<uint64_t>(sweep.read_bytes)),
      100 * sweep.io_bound_share, 100 * sweep.compute_bound_share));
}

void BenchReport::AddObstacle(const std::string& obstacle) {
  obstacles_[part_] = obstacle;
  if (!as_json_) Print(fmt::format("  not measured: {}\n", obstacle));
}

void BenchReport::End(nlohmann::ordered_json facts) {
  if (!as_json_) return;
  facts["results"] = results_;
  facts["not_measured"] = obstacles_;
  Print(facts.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace thimble::cli
