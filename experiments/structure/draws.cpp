// Squared errors of tanh MLPs with given weights, and their gradients, in one pass over the rows.
//
// Rows are taken 64 at a time, so that all activations of a block stay in the cache; every product is one loop,
// C[m, :] += sum_k A(m, k) B[k, :], on rows padded with zeros to whole vectors.

#include <cstddef>
#include <cstring>
#include <vector>

typedef float Vector __attribute__((vector_size(32), may_alias));
constexpr int LANES = 8, BLOCK = 64;

// A matrix whose rows are whole vectors, aligned to them; zero at first, and after the end of each row.
struct Matrix {
    int stride;
    std::vector<Vector> vectors;
    Matrix(int rows, int width)
        : stride((width + LANES - 1) / LANES * LANES), vectors(rows * stride / LANES, Vector{}) {}
    float* operator[](int row) { return (float*)vectors.data() + row * stride; }
    int size() const { return (int)vectors.size() * LANES; }
};

// C[m, :] += sum_k A[m * row + k * column] B[k, :] for M rows of P vectors.
template <int P, int M>
static void add_tile(int depth, const float* a, int row, int column, const Vector* b, Vector* c) {
    Vector sum[M][P];
    for (int m = 0; m < M; ++m)
        for (int p = 0; p < P; ++p) sum[m][p] = c[m * P + p];
    for (int k = 0; k < depth; ++k)
        for (int m = 0; m < M; ++m)
            for (int p = 0; p < P; ++p) sum[m][p] += a[m * row + k * column] * b[k * P + p];
    for (int m = 0; m < M; ++m)
        for (int p = 0; p < P; ++p) c[m * P + p] = sum[m][p];
}

template <int P>
static void add_rows(int count, int depth, const float* a, int row, int column, const Vector* b, Vector* c) {
    constexpr int M = P >= 5 ? 2 : P == 1 ? 8 : 12 / P;  // as many sums as there are registers for
    int m = 0;
    for (; m + M <= count; m += M) add_tile<P, M>(depth, a + m * row, row, column, b, c + m * P);
    for (; m < count; ++m) add_tile<P, 1>(depth, a + m * row, row, column, b, c + m * P);
}

// The same for `count` rows of any width up to 64.
static void add_product(int count, int depth, const float* a, int row, int column, const Matrix& b, Matrix& c) {
    constexpr decltype(&add_rows<1>) BY_VECTORS[] = {add_rows<1>, add_rows<2>, add_rows<3>, add_rows<4>,
                                                     add_rows<5>, add_rows<6>, add_rows<7>, add_rows<8>};
    BY_VECTORS[c.stride / LANES - 1](count, depth, a, row, column, b.vectors.data(), c.vectors.data());
}

// The eleventh convergent of Lambert's continued fraction x / (1 + x^2 / (3 + x^2 / (5 + ...))): within 4e-7 of tanh.
static inline float tanh_of(float x) {
    x = x > 7.44f ? 7.44f : x < -7.44f ? -7.44f : x;
    const float s = x * x;
    const float over = ((((s + 2145.f) * s + 675675.f) * s + 64324260.f) * s + 1964187225.f) * s + 13749310575.f;
    const float under = ((((66.f * s + 45045.f) * s + 7567560.f) * s + 413513100.f) * s + 6547290750.f) * s + 13749310575.f;
    return x * over / under;
}

// As the caller gives them: [draws, outputs, inputs] and [draws, outputs], with room for gradients of the same shapes.
struct Tensors {
    int inputs, outputs;
    const float *weight, *bias;
    float *weight_gradient, *bias_gradient;
};

struct Layer {
    int inputs, outputs;
    Matrix forward, back, gradient, bias, bias_gradient;  // weights as [inputs, outputs] and as [outputs, inputs]
    explicit Layer(const Tensors& t)
        : inputs(t.inputs), outputs(t.outputs), forward(inputs, outputs), back(outputs, inputs),
          gradient(outputs, inputs), bias(1, outputs), bias_gradient(1, outputs) {}

    void read(const Tensors& t, int draw) {
        const float* weight = t.weight + (size_t)draw * outputs * inputs;
        for (int o = 0; o < outputs; ++o)
            for (int i = 0; i < inputs; ++i) forward[i][o] = back[o][i] = weight[o * inputs + i];
        std::memcpy(bias[0], t.bias + (size_t)draw * outputs, outputs * sizeof(float));
        std::memset(gradient[0], 0, gradient.size() * sizeof(float));
        std::memset(bias_gradient[0], 0, bias_gradient.size() * sizeof(float));
    }
    void write(const Tensors& t, int draw) {
        for (int o = 0; o < outputs; ++o)
            std::memcpy(t.weight_gradient + ((size_t)draw * outputs + o) * inputs, gradient[o],
                        inputs * sizeof(float));
        std::memcpy(t.bias_gradient + (size_t)draw * outputs, bias_gradient[0], outputs * sizeof(float));
    }
};

// squares[s] = sum over rows and outputs of (f(x; w_s) - y)^2, with its gradients.
extern "C" void squared_errors(int rows, const float* x, const float* y, int draws, int depth, const Tensors* tensors,
                               float* squares) {
    std::vector<Layer> layers(tensors, tensors + depth);
    std::vector<Matrix> hidden, errors;  // what goes into each layer, and the gradient of that
    for (const Layer& layer : layers) hidden.emplace_back(BLOCK, layer.inputs);
    hidden.emplace_back(BLOCK, layers.back().outputs);
    errors = hidden;
    const int features = layers[0].inputs, targets = layers.back().outputs;
    for (int s = 0; s < draws; ++s) {
        for (int l = 0; l < depth; ++l) layers[l].read(tensors[l], s);
        double total = 0;
        for (int start = 0; start < rows; start += BLOCK) {
            const int count = rows - start < BLOCK ? rows - start : BLOCK;
            for (int r = 0; r < count; ++r)
                std::memcpy(hidden[0][r], x + (size_t)(start + r) * features, features * sizeof(float));
            for (int l = 0; l < depth; ++l) {
                Matrix &from = hidden[l], &to = hidden[l + 1];
                for (int r = 0; r < count; ++r) std::memcpy(to[r], layers[l].bias[0], to.stride * sizeof(float));
                add_product(count, layers[l].inputs, from[0], from.stride, 1, layers[l].forward, to);
                float* values = to[0];
                if (l + 1 < depth)
                    for (int i = 0; i < count * to.stride; ++i)
                        values[i] = tanh_of(values[i]);
            }
            for (int r = 0; r < count; ++r)
                for (int o = 0; o < targets; ++o) {
                    const float error = hidden[depth][r][o] - y[(size_t)(start + r) * targets + o];
                    total += error * error;
                    errors[depth][r][o] = 2.f * error;
                }
            for (int l = depth - 1; l >= 0; --l) {
                Matrix &from = errors[l + 1], &to = errors[l];
                float* bias = layers[l].bias_gradient[0];
                for (int r = 0; r < count; ++r)
                    for (int o = 0; o < from.stride; ++o) bias[o] += from[r][o];
                add_product(layers[l].outputs, count, from[0], 1, from.stride, hidden[l], layers[l].gradient);
                if (l == 0) continue;
                std::memset(to[0], 0, to.size() * sizeof(float));
                add_product(count, layers[l].outputs, from[0], from.stride, 1, layers[l].back, to);
                float *values = hidden[l][0], *gradients = to[0];
                for (int i = 0; i < count * to.stride; ++i) gradients[i] *= 1.f - values[i] * values[i];
            }
        }
        squares[s] = (float)total;
        for (int l = 0; l < depth; ++l) layers[l].write(tensors[l], s);
    }
}
