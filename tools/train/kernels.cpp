// The parts of a training step that PyTorch spreads over many small operations: chunkwise KDA,
// its short convolution and SiTU, forward and backward, and rounding to the MXFP4 grid.
// Called through ctypes (kernels.py), compared with PyTorch in test_kernels.py.
// Tensors are [batch, time, head * channel], so nothing has to be transposed.
#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {
constexpr int C = 16;  // tokens a chunk: with log decays above -5, e^80 still fits in float32
constexpr int D = 64;  // head dimension
constexpr int TAPS = 4;
constexpr float L2_EPS = 1e-6f;

using Chunk = Eigen::Matrix<float, C, D, Eigen::RowMajor>;
using Square = Eigen::Matrix<float, C, C, Eigen::RowMajor>;
using State = Eigen::Matrix<float, D, D, Eigen::RowMajor>;
using Column = Eigen::Matrix<float, C, 1>;
using Stride = Eigen::OuterStride<>;
using In = Eigen::Map<const Chunk, 0, Stride>;
using Out = Eigen::Map<Chunk, 0, Stride>;

// What forward and backward both need of a chunk; see test_kernels.py for the notation.
struct Parts {
  Chunk k_in, q_in, k_out, k_end, grow, shrink, end;
  Eigen::Matrix<float, 1, D> decay;
  Square a, read, x;  // a: strictly lower scores, x: I + diag(beta) a
};

void prepare(const In& q, const In& k, const In& g, const Column& beta, Parts& p) {
  Chunk total;
  total.row(0) = g.row(0);
  for (int t = 1; t < C; ++t) total.row(t) = total.row(t - 1) + g.row(t);
  p.grow = total.array().exp();
  p.shrink = (-total).array().exp();
  p.end = ((-total).rowwise() + total.row(C - 1)).array().exp();
  p.decay = p.grow.row(C - 1);
  p.k_in = k.cwiseProduct(p.grow);
  p.q_in = q.cwiseProduct(p.grow);
  p.k_out = k.cwiseProduct(p.shrink);
  p.k_end = k.cwiseProduct(p.end);
  p.a.noalias() = p.k_in * p.k_out.transpose();
  p.a = p.a.triangularView<Eigen::StrictlyLower>();
  p.read.noalias() = p.q_in * p.k_out.transpose();
  p.read = p.read.triangularView<Eigen::Lower>();
  p.x = beta.asDiagonal() * p.a;
}

// y <- (I + low)^-1 y, forward substitution on whole rows.
void solve(const Square& low, Chunk& y) {
  for (int t = 1; t < C; ++t)
    for (int s = 0; s < t; ++s) y.row(t) -= low(t, s) * y.row(s);
}

// y <- (I + low)^-T y
void solve_transposed(const Square& low, Chunk& y) {
  for (int t = C - 1; t > 0; --t)
    for (int s = 0; s < t; ++s) y.row(s) -= low(t, s) * y.row(t);
}

Column column(const float* beta, int64_t heads) {
  Column b;
  for (int t = 0; t < C; ++t) b(t) = beta[t * heads];
  return b;
}

// Clamped: fast-math divides by a reciprocal estimate, which makes 1 / inf a NaN.
float sigmoid(float x) { return 1.0f / (1.0f + std::exp(std::min(-x, 80.0f))); }
}  // namespace

extern "C" {

// q, k, v: rows of `row` floats; g, o, u: rows of heads * D; beta: rows of heads.
// states receives each chunk's incoming state, u the solved values, both for backward.
void kda_forward(int64_t batch, int64_t time, int64_t heads, int64_t row, const float* q,
                 const float* k, const float* v, const float* g, const float* beta, float* o,
                 float* u, float* states) {
  const int64_t width = heads * D, chunks = time / C;
  Parts p;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h) {
      State s = State::Zero();
      for (int64_t n = 0; n < chunks; ++n) {
        const int64_t t = b * time + n * C, in = t * row + h * D, out = t * width + h * D;
        const Column bt = column(beta + t * heads + h, heads);
        prepare(In(q + in, Stride(row)), In(k + in, Stride(row)), In(g + out, Stride(width)), bt,
                p);
        Eigen::Map<State>(states + ((b * heads + h) * chunks + n) * D * D) = s;
        Chunk y = In(v + in, Stride(row));
        y.noalias() -= p.k_in * s;
        y = bt.asDiagonal() * y;
        solve(p.x, y);
        Chunk result;
        result.noalias() = p.q_in * s;
        result.noalias() += p.read * y;
        Out(o + out, Stride(width)) = result;
        Out(u + out, Stride(width)) = y;
        s = p.decay.transpose().asDiagonal() * s;
        s.noalias() += p.k_end.transpose() * y;
      }
    }
}

void kda_backward(int64_t batch, int64_t time, int64_t heads, int64_t row, const float* q,
                  const float* k, const float* v, const float* g, const float* beta, const float* u,
                  const float* states, const float* grad, float* dq, float* dk, float* dv,
                  float* dg, float* dbeta) {
  const int64_t width = heads * D, chunks = time / C;
  Parts p;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h) {
      State ds = State::Zero();
      for (int64_t n = chunks - 1; n >= 0; --n) {
        const int64_t t = b * time + n * C, in = t * row + h * D, out = t * width + h * D;
        const Column bt = column(beta + t * heads + h, heads);
        prepare(In(q + in, Stride(row)), In(k + in, Stride(row)), In(g + out, Stride(width)), bt,
                p);
        const Eigen::Map<const State> s(states + ((b * heads + h) * chunks + n) * D * D);
        const Chunk y = In(u + out, Stride(width)), dout = In(grad + out, Stride(width));
        Chunk rest = In(v + in, Stride(row));
        rest.noalias() -= p.k_in * s;
        Chunk w;
        w.noalias() = p.read.transpose() * dout;
        w.noalias() += p.k_end * ds;
        solve_transposed(p.x, w);
        Square dread, dx;
        dread.noalias() = dout * y.transpose();
        dread = dread.triangularView<Eigen::Lower>();
        dx.noalias() = -w * y.transpose();
        dx = dx.triangularView<Eigen::StrictlyLower>();
        const Column db =
            w.cwiseProduct(rest).rowwise().sum() + dx.cwiseProduct(p.a).rowwise().sum();
        for (int i = 0; i < C; ++i) dbeta[(t + i) * heads + h] = db(i);
        const Square da = bt.asDiagonal() * dx;
        const Chunk drest = bt.asDiagonal() * w;
        Out(dv + in, Stride(row)) = drest;
        Chunk dq_in, dk_in, dk_out, dk_end;
        dq_in.noalias() = dout * s.transpose();
        dq_in.noalias() += dread * p.k_out;
        dk_in.noalias() = -drest * s.transpose();
        dk_in.noalias() += da * p.k_out;
        dk_out.noalias() = da.transpose() * p.k_in;
        dk_out.noalias() += dread.transpose() * p.q_in;
        dk_end.noalias() = y * ds.transpose();
        const Eigen::Matrix<float, 1, D> ddecay = s.cwiseProduct(ds).rowwise().sum().transpose();
        const Chunk at_end = dk_end.cwiseProduct(p.k_end);
        Chunk dtotal = dq_in.cwiseProduct(p.q_in) + dk_in.cwiseProduct(p.k_in) -
                       dk_out.cwiseProduct(p.k_out) - at_end;
        dtotal.row(C - 1) += at_end.colwise().sum() + ddecay.cwiseProduct(p.decay);
        for (int i = C - 2; i >= 0; --i) dtotal.row(i) += dtotal.row(i + 1);
        Out(dg + out, Stride(width)) = dtotal;
        Out(dq + in, Stride(row)) = dq_in.cwiseProduct(p.grow);
        Out(dk + in, Stride(row)) =
            dk_in.cwiseProduct(p.grow) + dk_out.cwiseProduct(p.shrink) + dk_end.cwiseProduct(p.end);
        ds = p.decay.transpose().asDiagonal() * ds;
        ds.noalias() += p.q_in.transpose() * dout;
        ds.noalias() -= p.k_in.transpose() * drest;
      }
    }
}

// Depthwise causal convolution of [q | k | v] rows, SiLU, then q and k to unit length per head
// (q also times D^-1/2). taps is [TAPS, width], the last for the current token.
void conv_forward(int64_t batch, int64_t time, int64_t width, const float* x, const float* taps,
                  float* y) {
  const int64_t normed = width / 3 * 2;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0; t < time; ++t) {
      float* out = y + (b * time + t) * width;
      for (int64_t c = 0; c < width; ++c) out[c] = 0;
      for (int64_t j = std::max<int64_t>(0, TAPS - 1 - t); j < TAPS; ++j) {
        const float *in = x + (b * time + t - (TAPS - 1) + j) * width, *w = taps + j * width;
        for (int64_t c = 0; c < width; ++c) out[c] += in[c] * w[c];
      }
      for (int64_t c = 0; c < width; ++c) out[c] *= sigmoid(out[c]);
      for (int64_t c = 0; c < normed; c += D) {
        float sum = L2_EPS;
        for (int i = 0; i < D; ++i) sum += out[c + i] * out[c + i];
        const float scale = (c < normed / 2 ? 1.0f / std::sqrt(float(D)) : 1.0f) / std::sqrt(sum);
        for (int i = 0; i < D; ++i) out[c + i] *= scale;
      }
    }
}

// dx and dtaps must be zero on entry.
void conv_backward(int64_t batch, int64_t time, int64_t width, const float* x, const float* taps,
                   const float* grad, float* dx, float* dtaps) {
  const int64_t normed = width / 3 * 2;
  std::vector<float> pre(width), act(width), d(width);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0; t < time; ++t) {
      const int64_t first = std::max<int64_t>(0, TAPS - 1 - t);
      const float* go = grad + (b * time + t) * width;
      for (int64_t c = 0; c < width; ++c) pre[c] = 0, d[c] = go[c];
      for (int64_t j = first; j < TAPS; ++j) {
        const float *in = x + (b * time + t - (TAPS - 1) + j) * width, *w = taps + j * width;
        for (int64_t c = 0; c < width; ++c) pre[c] += in[c] * w[c];
      }
      for (int64_t c = 0; c < width; ++c) act[c] = sigmoid(pre[c]);
      for (int64_t c = 0; c < normed; c += D) {
        float sum = L2_EPS, dot = 0;
        for (int i = 0; i < D; ++i) {
          const float s = pre[c + i] * act[c + i];
          sum += s * s;
          dot += s * go[c + i];
        }
        const float scale = (c < normed / 2 ? 1.0f / std::sqrt(float(D)) : 1.0f) / std::sqrt(sum);
        for (int i = 0; i < D; ++i)
          d[c + i] = scale * (go[c + i] - pre[c + i] * act[c + i] * dot / sum);
      }
      for (int64_t c = 0; c < width; ++c) d[c] *= act[c] * (1 + pre[c] * (1 - act[c]));
      for (int64_t j = first; j < TAPS; ++j) {
        const int64_t at = (b * time + t - (TAPS - 1) + j) * width;
        const float *in = x + at, *w = taps + j * width;
        float *din = dx + at, *dw = dtaps + j * width;
        for (int64_t c = 0; c < width; ++c) din[c] += d[c] * w[c], dw[c] += d[c] * in[c];
      }
    }
}

// y = 4 tanh(g/4) sigmoid(g) 25 tanh(u/25) for rows [g | u] of 2 * width.
void situ_forward(int64_t rows, int64_t width, const float* x, float* y) {
  for (int64_t r = 0; r < rows; ++r) {
    const float *g = x + r * 2 * width, *u = g + width;
    for (int64_t i = 0; i < width; ++i)
      y[r * width + i] =
          100 * (2 * sigmoid(g[i] * 0.5f) - 1) * sigmoid(g[i]) * (2 * sigmoid(u[i] * 0.08f) - 1);
  }
}

void situ_backward(int64_t rows, int64_t width, const float* x, const float* grad, float* dx) {
  for (int64_t r = 0; r < rows; ++r) {
    const float *g = x + r * 2 * width, *u = g + width, *go = grad + r * width;
    float *dg = dx + r * 2 * width, *du = dg + width;
    for (int64_t i = 0; i < width; ++i) {
      const float sig = sigmoid(g[i]), tg = 2 * sigmoid(g[i] * 0.5f) - 1,
                  tu = 2 * sigmoid(u[i] * 0.08f) - 1;
      const float gs = go[i] * sig;
      dg[i] = gs * tu * (25 * (1 - tg * tg) + 100 * tg * (1 - sig));
      du[i] = gs * tg * 4 * (1 - tu * tu);
    }
  }
}

// Groups of 32 to the MXFP4 grid, ties to even, as mxfp4.py does it.
void mxfp4_snap(int64_t groups, const float* w, float* out) {
  for (int64_t n = 0; n < groups; ++n, w += 32, out += 32) {
    float amax = 0;
    for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(w[i]));
    int e;
    const float mantissa = std::frexp(amax, &e);
    const float scale = std::ldexp(1.0f, e - 3 + (mantissa > 0.75f)), inverse = 1.0f / scale;
    for (int i = 0; i < 32; ++i) {
      const float mag = std::fabs(w[i]) * inverse;
      const float up = mag < 2   ? 2.0f
                       : mag < 4 ? 1.0f
                                 : 0.5f,
                  down = mag < 2   ? 0.5f
                         : mag < 4 ? 1.0f
                                   : 2.0f;
      out[i] = std::copysign(std::nearbyint(mag * up) * down * scale, w[i]);
    }
  }
}
}  // extern "C"
