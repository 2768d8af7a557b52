#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "engine/generation.h"
#include "engine/prefix_store.h"
#include "engine/session_file.h"
#include "engine/snapshot.h"
#include "support/checkpoint_builder.h"
#include "support/expect_error.h"
#include "support/fixed_process.h"
#include "support/silent_listener.h"
#include "support/temp_dir.h"

namespace thimble {
namespace {

using Ids = std::vector<TokenId>;
using Floats = std::vector<float>;

// Both architectures: KDA and MLA layers, random weights, a vocabulary of 96 ids.
class SessionTest : public testing::TestWithParam<bool> {
 protected:
  SessionTest() {
    Builder().Write(dir_.path());
    model_ = std::make_unique<ModelDirectory>(ModelDirectory::Open(dir_.path()));
  }

  static CheckpointBuilder Builder(uint64_t seed = 1) {
    CheckpointDims dims;
    dims.seed = seed;
    return GetParam() ? CheckpointBuilder::KimiK3(dims) : CheckpointBuilder::KimiLinear(dims);
  }

  std::unique_ptr<Engine> Open(size_t num_sessions = 2, uint64_t snapshot_bytes = 8'000'000,
                               size_t context = 200) const {
    EngineOptions options;
    options.memory_bytes = 256'000'000;
    options.process = kFixedProcess;
    options.context = context;
    options.num_sessions = num_sessions;
    options.num_threads = 1;
    options.prefill_chunk = 16;
    options.snapshot_bytes = snapshot_bytes;
    return Engine::Open(*model_, options);
  }

  static Ids Tokens(size_t count, size_t first = 1) {
    Ids ids;
    for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<TokenId>((first + 7 * i) % 96));
    return ids;
  }
  static Floats Logits(const Session& session) {
    return {session.logits().begin(), session.logits().end()};
  }
  static bool SameBits(const Floats& a, const Floats& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  TempDir dir_;
  std::unique_ptr<ModelDirectory> model_;
};

INSTANTIATE_TEST_SUITE_P(Models, SessionTest, testing::Values(true, false));

TEST_P(SessionTest, RestoredEqualsNeverStopped) {
  const auto engine = Open();
  Session whole(*engine);
  whole.Append(Tokens(40), nullptr);
  const Floats expected_before = Logits(whole);
  const Snapshot snapshot = Snapshot::Take(whole);
  EXPECT_EQ(snapshot.tokens(), Tokens(40));
  whole.Append(Tokens(5, 3), nullptr);
  const Floats expected = Logits(whole);

  Session resumed(*engine);
  resumed.Append(Tokens(90, 2), nullptr);  // its traces must be gone
  snapshot.RestoreTo(resumed);
  EXPECT_EQ(resumed.tokens(), Tokens(40));
  EXPECT_TRUE(SameBits(Logits(resumed), expected_before));
  resumed.Append(Tokens(5, 3), nullptr);
  EXPECT_TRUE(SameBits(Logits(resumed), expected));
  // And a second time: the snapshot is not used up.
  snapshot.RestoreTo(whole);
  whole.Append(Tokens(5, 3), nullptr);
  EXPECT_TRUE(SameBits(Logits(whole), expected));
}

TEST_P(SessionTest, ClearedEqualsNew) {
  const auto engine = Open();
  Session fresh(*engine);
  fresh.Append(Tokens(20), nullptr);
  Session used(*engine);
  used.Append(Tokens(70, 5), nullptr);
  used.Clear();
  EXPECT_EQ(used.num_tokens(), 0u);
  EXPECT_FALSE(used.has_logits());
  used.Append(Tokens(20), nullptr);
  EXPECT_TRUE(SameBits(Logits(used), Logits(fresh)));
}

TEST_P(SessionTest, RestoringCuresAPoisonedSession) {
  struct Stopper : Session::Observer {
    bool OnLayer(size_t layer) override { return layer < 2; }
    void OnProgress(size_t, size_t) override {}
  } stopper;
  const auto engine = Open();
  Session session(*engine);
  session.Append(Tokens(10), nullptr);
  const Snapshot snapshot = Snapshot::Take(session);
  session.Append(Tokens(3), nullptr);
  const Floats expected = Logits(session);
  ExpectError(ErrorCode::kInterrupted, {}, [&] { session.Append(Tokens(3), &stopper); });
  ASSERT_TRUE(session.poisoned());
  snapshot.RestoreTo(session);
  session.Append(Tokens(3), nullptr);
  EXPECT_TRUE(SameBits(Logits(session), expected));
}

// Whatever was asked for of the drive, and not taken, does no harm to what comes next.
TEST_P(SessionTest, ASweepMayBeStoppedAnywhere) {
  struct Stopper : Session::Observer {
    bool OnLayer(size_t) override { return true; }
    bool Continue() override { return left-- > 0; }
    void OnProgress(size_t, size_t) override {}
    size_t left = 0;
  } stopper;
  const auto engine = Open();
  Session session(*engine);
  session.Append(Tokens(3), nullptr);
  const Floats expected = Logits(session);
  size_t num_stopped = 0;
  for (size_t questions = 0;; ++questions, ++num_stopped) {
    session.Clear();
    stopper.left = questions;
    try {
      session.Append(Tokens(3), &stopper);
      break;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kInterrupted) << error.what();
    }
    session.Clear();
    session.Append(Tokens(3), nullptr);
    ASSERT_TRUE(SameBits(Logits(session), expected)) << "after a stop at " << questions;
  }
  EXPECT_GT(num_stopped, 4 * engine->config().num_layers());
}

TEST_P(SessionTest, APauseLeavesTheSessionWhole) {
  struct Pauser : Session::Observer {
    bool OnLayer(size_t) override { return true; }
    void OnProgress(size_t, size_t) override {}
    bool OnPause() override { return false; }
  } pauser;
  const auto engine = Open();
  Session session(*engine);
  ExpectError(ErrorCode::kInterrupted, {"16 of 40"}, [&] { session.Append(Tokens(40), &pauser); });
  EXPECT_FALSE(session.poisoned());
  ASSERT_EQ(session.num_tokens(), 16u);
  const Ids tokens = Tokens(40);
  session.Append(std::span(tokens).subspan(16), nullptr);
  Session whole(*engine);
  whole.Append(tokens, nullptr);
  EXPECT_TRUE(SameBits(Logits(session), Logits(whole)));
}

TEST_P(SessionTest, SessionsOfOneSweepGiveTheBitsOfEachAlone) {
  const auto engine = Open(4);
  const Ids prompts[] = {Tokens(9), Tokens(3, 4), Tokens(1, 8)};
  std::vector<Floats> expected;
  for (const Ids& prompt : prompts) {
    Session alone(*engine);
    alone.Append(prompt, nullptr);
    alone.Append(Ids{5}, nullptr);
    expected.push_back(Logits(alone));
  }
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<SessionStep> steps;
  for (const Ids& prompt : prompts) {
    sessions.push_back(std::make_unique<Session>(*engine));
    steps.push_back({sessions.back().get(), prompt, false});
  }
  engine->Advance(steps, nullptr);
  const Ids next = {5};
  for (SessionStep& step : steps) step = {step.session, next, true};
  engine->Advance(steps, nullptr);
  for (size_t i = 0; i < sessions.size(); ++i) {
    EXPECT_TRUE(SameBits(Logits(*sessions[i]), expected[i])) << i;
    EXPECT_EQ(sessions[i]->num_tokens(), prompts[i].size() + 1);
  }
  const Ids too_many = Tokens(engine->MaxSweepTokens() + 1);
  const SessionStep step = {sessions[0].get(), too_many, true};
  ExpectError(ErrorCode::kUsage, {"a sweep takes"}, [&] { engine->Advance({&step, 1}, nullptr); });
}

// ---- on disk

TEST_P(SessionTest, ASavedGenerationGoesOnAsIfNeverStopped) {
  GenerationOptions options;
  options.max_tokens = 20;
  options.sampling.temperature = 1;
  options.sampling.repeat_penalty = 1.3F;
  options.sampling.seed = 11;
  SilentListener listener;
  Ids expected;
  {
    const auto engine = Open();
    Session session(*engine);
    expected = Generate(session, Tokens(30), options, listener).ids;
  }
  const auto path = dir_ / "session";
  options.max_tokens = 8;
  Ids ids;
  {
    const auto engine = Open();
    Session session(*engine);
    const GenerationResult result = Generate(session, Tokens(30), options, listener);
    ids = result.ids;
    SessionFile::Save(path, session, {{ids.back()}, result.random_state, "note"});
  }
  EXPECT_EQ(SessionFile::NumTokens(path), 38u);
  const auto engine = Open();  // another process, as it were
  Session session(*engine);
  const SessionNotes notes = SessionFile::Load(path, session);
  EXPECT_EQ(notes.text, "note");
  options.max_tokens = 12;
  options.random_state = notes.random_state;
  const Ids rest = Generate(session, notes.pending, options, listener).ids;
  ids.insert(ids.end(), rest.begin(), rest.end());
  EXPECT_EQ(ids, expected);
}

TEST_P(SessionTest, LogitsAreSavedToo) {
  const auto path = dir_ / "session";
  const auto engine = Open();
  Session session(*engine);
  session.Append(Tokens(12), nullptr);
  SessionFile::Save(path, session, {});
  SessionFile::Save(path, session, {});  // over the old one
  Session loaded(*engine);
  SessionFile::Load(path, loaded);
  ASSERT_TRUE(loaded.has_logits());
  EXPECT_TRUE(SameBits(Logits(loaded), Logits(session)));
  EXPECT_EQ(loaded.tokens(), session.tokens());
}

std::string ReadBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_P(SessionTest, RefusesEveryFileThatIsNotWhole) {
  const auto path = dir_ / "session";
  const auto engine = Open();
  Session session(*engine);
  session.Append(Tokens(12), nullptr);
  SessionFile::Save(path, session, {Tokens(2), "random", "text"});
  const std::string whole = ReadBytes(path);
  const auto expect_refused = [&](const std::string& bytes, const std::string& reason) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    Session other(*engine);
    other.Append(Tokens(3), nullptr);
    ExpectBadModel({path.string(), reason}, [&] { SessionFile::Load(path, other); });
    // Never half of it: empty, and of use.
    EXPECT_EQ(other.num_tokens(), 0u);
    EXPECT_FALSE(other.poisoned());
  };
  expect_refused("", "cut short");
  expect_refused(whole.substr(0, 79), "cut short");
  expect_refused(whole.substr(0, whole.size() - 1), "expected " + std::to_string(whole.size()));
  expect_refused(whole + "x", "expected " + std::to_string(whole.size()));
  expect_refused("GGUF" + whole.substr(4), "is not a Thimble session");
  const auto flipped = [&](size_t i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 4);
    return bytes;
  };
  expect_refused(flipped(8), "format 5, expected 1");
  for (size_t i = 12; i < 80; ++i) expect_refused(flipped(i), "damaged");
  for (size_t i = 80; i < whole.size(); i += 1 + whole.size() / 40) {
    expect_refused(flipped(i), "damaged");
  }
  expect_refused(flipped(whole.size() - 1), "damaged");
}

TEST_P(SessionTest, ASessionKeepsThePrecisionOfItsLatents) {
  const auto path = dir_ / "session";
  EngineOptions options;
  options.context = 60;
  options.prefill_chunk = 16;
  options.snapshot_bytes = 4'000'000;
  for (const LatentFormat format : {LatentFormat::kBF16, LatentFormat::kFP8}) {
    options.latents = format;
    const auto engine = Engine::Open(*model_, options);
    Floats expected;
    {
      Session session(*engine);
      session.Append(Tokens(30), nullptr);
      const Snapshot snapshot = Snapshot::Take(session);
      SessionFile::Save(path, session, {});
      session.Append(Tokens(3, 2), nullptr);
      expected = Logits(session);
      snapshot.RestoreTo(session);
      session.Append(Tokens(3, 2), nullptr);
      EXPECT_TRUE(SameBits(Logits(session), expected));
    }
    Session loaded(*engine);
    SessionFile::Load(path, loaded);
    loaded.Append(Tokens(3, 2), nullptr);
    EXPECT_TRUE(SameBits(Logits(loaded), expected));
    const auto plain = Open(1, 0, 60);
    Session other(*plain);
    ExpectBadModel({NameOf(format), "expected f32", "--kv"},
                   [&] { SessionFile::Load(path, other); });
  }
}

TEST_P(SessionTest, RefusesOtherModelsAndTooSmallContexts) {
  const auto path = dir_ / "session";
  uint64_t fingerprint = 0;
  {
    const auto engine = Open();
    fingerprint = engine->Fingerprint();
    Session session(*engine);
    session.Append(Tokens(60), nullptr);
    SessionFile::Save(path, session, {});
  }
  {
    const auto engine = Open(1, 0, 59);
    EXPECT_EQ(engine->Fingerprint(), fingerprint);
    Session session(*engine);
    ExpectError(ErrorCode::kUsage, {"60 tokens", "59", "-c"},
                [&] { SessionFile::Load(path, session); });
  }
  TempDir other_dir;
  Builder(2).Write(other_dir.path());
  const ModelDirectory other = ModelDirectory::Open(other_dir.path());
  EngineOptions options;
  options.context = 100;
  const auto engine = Engine::Open(other, options);
  EXPECT_NE(engine->Fingerprint(), fingerprint);
  Session session(*engine);
  ExpectBadModel({"another model"}, [&] { SessionFile::Load(path, session); });
}

// ---- the store of prefixes

TEST_P(SessionTest, TheLongestStoredPrefixIsFound) {
  const auto engine = Open();
  PrefixStore store(8'000'000);
  Session session(*engine);
  const Ids prompt = Tokens(60);
  EXPECT_EQ(store.Find(prompt), nullptr);
  EXPECT_FALSE(store.Keep(session));  // nothing in it
  for (const size_t end : {10u, 25u, 40u}) {
    const size_t begin = session.num_tokens();
    session.Append(std::span(prompt).subspan(begin, end - begin), nullptr);
    EXPECT_TRUE(store.Keep(session));
  }
  EXPECT_TRUE(store.Keep(session));
  EXPECT_EQ(store.size(), 3u);
  EXPECT_EQ(store.Find(prompt)->tokens().size(), 40u);
  EXPECT_EQ(store.Find(std::span(prompt).first(40))->tokens().size(), 40u);
  EXPECT_EQ(store.Find(std::span(prompt).first(39))->tokens().size(), 25u);
  Ids other = prompt;
  other[12] ^= 1;
  EXPECT_EQ(store.Find(other)->tokens().size(), 10u);
  other[0] ^= 1;
  EXPECT_EQ(store.Find(other), nullptr);
}

TEST_P(SessionTest, ResumesFromWhateverIsLongest) {
  const auto engine = Open();
  PrefixStore store(8'000'000);
  Session session(*engine);
  const Ids prompt = Tokens(60);
  session.Append(std::span(prompt).first(20), nullptr);
  ASSERT_TRUE(store.Keep(session));
  session.Append(std::span(prompt).subspan(20, 10), nullptr);
  EXPECT_EQ(store.Resume(session, prompt), 30u);  // its own tokens
  EXPECT_EQ(store.Resume(session, std::span(prompt).first(30)), 30u);
  EXPECT_EQ(store.Resume(session, std::span(prompt).first(29)), 20u);
  session.Append(Tokens(1, 50), nullptr);
  EXPECT_EQ(store.Resume(session, prompt), 20u);
  EXPECT_EQ(store.Resume(session, Tokens(60, 2)), 0u);
  EXPECT_EQ(session.num_tokens(), 0u);
  EXPECT_EQ(store.Resume(session, std::span(prompt).first(20)), 20u);
  EXPECT_TRUE(session.has_logits());
}

TEST_P(SessionTest, TheLeastRecentlyUsefulGoesFirst) {
  const auto engine = Open();
  const uint64_t each = Snapshot::Bytes(engine->config(), 20);
  PrefixStore store(3 * each);
  const auto keep = [&](size_t first) {
    Session session(*engine);
    session.Append(Tokens(20, first), nullptr);
    return store.Keep(session);
  };
  for (const size_t first : {1u, 2u, 3u}) EXPECT_TRUE(keep(first));
  EXPECT_NE(store.Find(Tokens(30, 1)), nullptr);
  EXPECT_TRUE(keep(4));
  EXPECT_EQ(store.size(), 3u);
  EXPECT_LE(store.used_bytes(), store.limit_bytes());
  EXPECT_EQ(engine->Ledger().at("snapshots"), store.used_bytes());
  EXPECT_EQ(store.Find(Tokens(30, 2)), nullptr);
  for (const size_t first : {1u, 3u, 4u}) EXPECT_NE(store.Find(Tokens(30, first)), nullptr);
}

TEST_P(SessionTest, ShortRequestsNeverEvictALongConversation) {
  const auto engine = Open(2, 30'000'000, 256);
  const size_t length = PrefixStore::kShortTokens;
  PrefixStore store(Snapshot::Bytes(engine->config(), length) +
                    Snapshot::Bytes(engine->config(), 30) - 1);
  Session session(*engine);
  session.Append(Tokens(length), nullptr);
  ASSERT_TRUE(store.Keep(session));
  for (size_t i = 2; i < 30; ++i) {
    session.Clear();
    session.Append(Tokens(30, i), nullptr);
    EXPECT_FALSE(store.Keep(session));
  }
  EXPECT_NE(store.Find(Tokens(length)), nullptr);
  // A long one does.
  session.Clear();
  session.Append(Tokens(length, 9), nullptr);
  EXPECT_TRUE(store.Keep(session));
  EXPECT_EQ(store.Find(Tokens(length)), nullptr);
}

}  // namespace
}  // namespace thimble
