"""The operators of ONNX that a graph in a file may use: none that runs another graph, draws numbers or reads files."""

from __future__ import annotations

_ELEMENTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil
    Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf
    IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu
    Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Tan Tanh ThresholdedRelu Where Xor
"""
_LAYERS = """
    AveragePool BatchNormalization Conv ConvTranspose Einsum GRU Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool
    GroupNormalization InstanceNormalization LRN LSTM LayerNormalization LpNormalization LpPool MatMul MaxPool
    MeanVarianceNormalization RNN
"""
_REDUCTIONS = """
    ArgMax ArgMin CumSum Hardmax LogSoftmax ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare Softmax TopK
"""
_ARRANGING = """
    Concat ConstantOfShape DepthToSpace Det Expand EyeLike Flatten Gather GatherElements GatherND GridSample OneHot Pad
    Range Reshape Resize ReverseSequence ScatterElements ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile
    Transpose Trilu Unsqueeze
"""
OPERATORS = frozenset(f"{_ELEMENTWISE} {_LAYERS} {_REDUCTIONS} {_ARRANGING}".split())
GROWING = {  # inputs that say how large the output is, or how many times larger
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Resize": (2, 3),
    "Tile": (1,),
    "TopK": (1,),
}
