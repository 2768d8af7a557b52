#include "pack/weight_generator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "pack/nearest_e2m1.h"

namespace thimble {
namespace {

constexpr size_t kQuantiles = size_t{1} << 16;
constexpr size_t kFillGrain = size_t{1} << 14;  // elements for one thread at least
constexpr size_t kGroupBytes = 16;              // 32 codes of half a byte
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

// The finaliser of SplitMix64: a bijection whose output passes for random.
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr uint64_t StartOf(const StreamKey& key) {
  return Mix(Mix(Mix(key.seed + kGolden) + key.layer) + key.tensor);
}

// 64 random bits at a place of a stream.
constexpr uint64_t WordAt(uint64_t start, uint64_t index) { return Mix(start + index * kGolden); }

double NormalCdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752); }

// The inverse of NormalCdf, by Acklam's rational approximation (relative error below 1.2e-9).
double NormalQuantile(double p) {
  constexpr std::array kA = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                             1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr std::array kB = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                             6.680131188771972e+01, -1.328068155288572e+01};
  constexpr std::array kC = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                             -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr std::array kD = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                             3.754408661907416e+00};
  if (p > 0.5) return -NormalQuantile(1 - p);
  if (p < 0.02425) {
    const double q = std::sqrt(-2 * std::log(p));
    return (((((kC[0] * q + kC[1]) * q + kC[2]) * q + kC[3]) * q + kC[4]) * q + kC[5]) /
           ((((kD[0] * q + kD[1]) * q + kD[2]) * q + kD[3]) * q + 1);
  }
  const double q = p - 0.5;
  const double r = q * q;
  return (((((kA[0] * r + kA[1]) * r + kA[2]) * r + kA[3]) * r + kA[4]) * r + kA[5]) * q /
         (((((kB[0] * r + kB[1]) * r + kB[2]) * r + kB[3]) * r + kB[4]) * r + 1);
}

double Quantile(const Distribution& distribution, double p) {
  switch (distribution.kind) {
    case Distribution::Kind::kNormal:
      return distribution.mean + distribution.deviation * NormalQuantile(p);
    case Distribution::Kind::kLogRate:
      return std::log(1 + 15 * p);
    case Distribution::Kind::kTimeStep: {
      const double step = 0.001 * std::pow(100.0, p);
      return std::log(std::expm1(step));
    }
  }
  return 0;
}

template <typename T>
T Encode(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if constexpr (sizeof(T) == 4) return bits;
  return static_cast<T>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);  // to nearest even
}

// out[i] is element `first` + i of the stream.
template <typename T>
void FillPart(uint64_t start, const T* table, uint64_t first, std::span<std::byte> out) {
  const size_t count = out.size() / sizeof(T);
  std::byte* to = out.data();
  const auto put = [&](size_t i, uint64_t word, size_t lane) {
    std::memcpy(to + i * sizeof(T), &table[word >> (16 * lane) & 0xffff], sizeof(T));
  };
  size_t i = 0;
  for (; i < count && (first + i) % 4 != 0; ++i) {
    put(i, WordAt(start, (first + i) / 4), (first + i) % 4);
  }
  for (; i + 4 <= count; i += 4) {
    const uint64_t word = WordAt(start, (first + i) / 4);
    for (size_t lane = 0; lane < 4; ++lane) put(i + lane, word, lane);
  }
  for (; i < count; ++i) put(i, WordAt(start, (first + i) / 4), (first + i) % 4);
}

// The code of E2M1 nearest to `value`; never a negative zero.
uint8_t CodeOf(double value) {
  const uint8_t magnitude = NearestE2M1(std::abs(value));
  return static_cast<uint8_t>(magnitude | (value < 0 && magnitude != 0 ? 8 : 0));
}

}  // namespace

// Groups by the octave that their largest magnitude lies in: how likely each is, its scale, and
// the codes of its elements.
struct WeightGenerator::GroupTable {
  static constexpr size_t kOctaves = 5;

  explicit GroupTable(double deviation) {
    const int lowest = static_cast<int>(std::floor(std::log2(deviation))) - 1;
    for (size_t octave = 0; octave < kOctaves; ++octave) {
      const int exponent = lowest + static_cast<int>(octave);
      const double limit = std::ldexp(1.0, exponent + 1);
      const double below = NormalCdf(limit / deviation);
      last[octave] = octave + 1 == kOctaves
                         ? kQuantiles - 1
                         : static_cast<uint32_t>(std::pow(2 * below - 1, 32) * (kQuantiles - 1));
      // OCP Microscaling: the largest power of two in the group, less E2M1's largest exponent.
      scale[octave] = static_cast<std::byte>(std::clamp(127 + exponent - 2, 1, 254));
      for (size_t i = 0; i < 256; ++i) {
        const double p = (static_cast<double>(i) + 0.5) / 256;
        const double weight = deviation * NormalQuantile((1 - below) + p * (2 * below - 1));
        codes[octave][i] = CodeOf(std::ldexp(weight, 2 - exponent));
      }
    }
  }

  size_t OctaveAt(uint64_t start, uint64_t group) const {
    const auto draw = static_cast<uint32_t>(WordAt(~start, group) & 0xffff);
    size_t octave = 0;
    while (draw > last[octave]) ++octave;
    return octave;
  }

  std::array<uint32_t, kOctaves> last;  // largest draw that falls into each
  std::array<std::byte, kOctaves> scale;
  std::array<std::array<uint8_t, 256>, kOctaves> codes;
};

template <typename T>
const std::vector<T>& WeightGenerator::TableOf(const Distribution& distribution) {
  auto* tables = [&] {
    if constexpr (sizeof(T) == 2) return &bf16_tables_;
    if constexpr (sizeof(T) == 4) return &f32_tables_;
  }();
  std::vector<T>& table = (*tables)[distribution];
  if (table.empty()) {
    table.resize(kQuantiles);
    for (size_t i = 0; i < kQuantiles; ++i) {
      table[i] = Encode<T>(Quantile(distribution, (static_cast<double>(i) + 0.5) / kQuantiles));
    }
  }
  return table;
}

const WeightGenerator::GroupTable& WeightGenerator::GroupsOf(double deviation) {
  std::shared_ptr<const GroupTable>& table = group_tables_[deviation];
  if (table == nullptr) table = std::make_shared<const GroupTable>(deviation);
  return *table;
}

void WeightGenerator::Fill(const StreamKey& key, const Distribution& distribution,
                           const Elements& elements, std::span<std::byte> out) {
  const uint64_t start = StartOf(key);
  const auto fill = [&]<typename T>(const std::vector<T>& table) {
    const size_t count = out.size() / sizeof(T);
    pool_.ParallelFor(count, kFillGrain, [&](const Range& range) {
      FillPart(start, table.data(), elements.first + range.first,
               out.subspan(range.first * sizeof(T), (range.last - range.first) * sizeof(T)));
    });
    const uint64_t end = elements.first + count;
    if (end <= elements.num_elements) return;
    const uint64_t padding = std::min<uint64_t>(end - elements.num_elements, count);
    std::memset(out.data() + (count - padding) * sizeof(T), 0, padding * sizeof(T));
  };
  THIMBLE_CHECK(elements.dtype != DType::kU8 && out.size() % SizeOf(elements.dtype) == 0);
  elements.dtype == DType::kBF16 ? fill(TableOf<uint16_t>(distribution))
                                 : fill(TableOf<uint32_t>(distribution));
}

void WeightGenerator::FillCodes(const StreamKey& key, double deviation, uint64_t first,
                                std::span<std::byte> out) {
  const GroupTable& groups = GroupsOf(deviation);
  const uint64_t start = StartOf(key);
  const auto fill = [&](const Range& range) {
    for (size_t i = range.first; i < range.last;) {
      const uint64_t at = first + i;
      const auto& codes = groups.codes[groups.OctaveAt(start, at / kGroupBytes)];
      const size_t end = std::min<size_t>(range.last, i + kGroupBytes - at % kGroupBytes);
      for (uint64_t byte = at; i < end; ++i, ++byte) {
        const uint64_t bits = WordAt(start, byte / 4) >> (16 * (byte % 4));
        out[i] = static_cast<std::byte>(codes[bits & 0xff] | codes[bits >> 8 & 0xff] << 4);
      }
    }
  };
  pool_.ParallelFor(out.size(), kFillGrain, fill);
}

void WeightGenerator::FillScales(const StreamKey& key, double deviation, uint64_t first,
                                 std::span<std::byte> out) {
  const GroupTable& groups = GroupsOf(deviation);
  const uint64_t start = StartOf(key);
  pool_.ParallelFor(out.size(), kFillGrain, [&](const Range& range) {
    for (size_t i = range.first; i < range.last; ++i) {
      out[i] = groups.scale[groups.OctaveAt(start, first + i)];
    }
  });
}

}  // namespace thimble
