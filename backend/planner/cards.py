"""Cards, and what was measured of this engine on them.

Figures of the H100 and the H200 are fitted to the rows of their benchmarks (`docs/planner.md` says how well); those of
other cards are the H100's, scaled by the vendor's bandwidth, arithmetic and memory, and said to be so.
"""

from dataclasses import dataclass, replace

from backend.quantization.format import Quantization, Speed

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Card:
    """
    Attributes:
        memory: bytes the driver shows. reserved: bytes that CUDA and its libraries take before the first tensor.
        like: the measured card that its speeds by weight format are of (`Quantization.speeds`); bandwidth, arithmetic:
            how many times that card's they are. units: what its tensor cores multiply beside bfloat16.
        cache_bandwidth: bytes/s at which decode attention reads keys and values.
        attention_flops: of prompts, per second.
        layer_one_row, layer_many_rows: seconds a layer takes beside its products and attention, in a captured step.
        layer_launches: seconds for the host to launch a layer of a large step, in pieces; one that runs kernel by
            kernel takes the card longer than the host.
        request: seconds from a request's arrival to its first step, and from its last to its end.
        prompt_token: seconds of the host for each token of a prompt: taken in, hashed, sent.
        link_latency, link_bandwidth: seconds that a small sum over the cards of a host adds to the norm behind it, and
            bytes/s of a large one; of two H200s that NVLink joins.
        step: seconds between steps; row: of the host, for each running sequence and step.
        calibrated: measured, not scaled from another card.
    """

    name: str
    memory: int
    reserved: int
    like: str
    cache_bandwidth: float
    attention_flops: float
    layer_one_row: float
    layer_many_rows: float
    layer_launches: float
    request: float
    prompt_token: float
    step: float
    row: float
    link_latency: float = 4e-6
    link_bandwidth: float = 280e9
    units: frozenset[str] = frozenset({"fp8", "int8"})
    bandwidth: float = 1.0
    arithmetic: float = 1.0
    calibrated: bool = True

    def multiplies(self, format: Quantization) -> bool:
        return format.unit is None or format.unit in self.units

    def speed(self, format: Quantization) -> Speed:
        """Speed of products by weights in that format."""
        s = format.speeds[self.like]
        return Speed(s.one_row * self.bandwidth, s.many_rows * self.bandwidth, s.flops * self.arithmetic)

    def scaled(
        self, name: str, memory: int, bandwidth: float, arithmetic: float, units: frozenset[str] = frozenset()
    ) -> "Card":
        """A card with so many times the bandwidth and the arithmetic of this one."""
        return replace(
            self,
            name=name,
            memory=memory,
            units=units,
            bandwidth=self.bandwidth * bandwidth,
            arithmetic=self.arithmetic * arithmetic,
            cache_bandwidth=self.cache_bandwidth * bandwidth,
            attention_flops=self.attention_flops * arithmetic,
            calibrated=False,
        )


H100 = Card(
    name="NVIDIA H100 80GB HBM3",
    memory=85_029_158_912,
    reserved=770 << 20,
    like="h100",
    cache_bandwidth=2.6e12,
    attention_flops=300e12,
    layer_one_row=15e-6,
    layer_many_rows=30e-6,
    layer_launches=0.25e-3,
    request=0.8e-3,
    prompt_token=0.4e-6,
    step=50e-6,
    row=2e-6,
)

H200 = Card(
    name="NVIDIA H200",
    memory=150_109_880_320,
    reserved=770 << 20,
    like="h200",
    cache_bandwidth=3.6e12,
    attention_flops=400e12,
    layer_one_row=11e-6,
    layer_many_rows=21e-6,
    layer_launches=0.25e-3,
    request=0.88e-3,
    prompt_token=0.31e-6,
    step=50e-6,
    row=1.4e-6,
)

FP8 = frozenset({"fp8", "int8"})
INT8 = frozenset({"int8"})


def _card(name: str, memory: int, bandwidth: float, arithmetic: float, units: frozenset[str] = FP8) -> Card:
    """By its vendor's figures: bandwidth in TB/s, dense bfloat16 arithmetic with float32 sums in TFLOP/s."""
    return H100.scaled(name, memory, bandwidth / 3.35, arithmetic / 989, units)  # those of the H100 SXM


CARDS = {
    "h100": H100,
    "h200": H200,
    "a100-40gb": _card("NVIDIA A100-SXM4-40GB", 42_298_834_944, 1.555, 312, INT8),
    "a100-80gb": _card("NVIDIA A100-SXM4-80GB", 85_094_825_984, 2.04, 312, INT8),
    "l4": _card("NVIDIA L4", int(22.03 * GIB), 0.3, 121),
    "l40s": _card("NVIDIA L40S", 47_810_936_832, 0.864, 362),
    "rtx-4090": _card("NVIDIA GeForce RTX 4090", int(23.64 * GIB), 1.008, 165),
    "rtx-5090": _card("NVIDIA GeForce RTX 5090", 33_677_180_928, 1.792, 209),
    "h100-nvl": _card("NVIDIA H100 NVL", int(93.1 * GIB), 3.9, 835),
    "b200": _card("NVIDIA B200", int(178.35 * GIB), 8.0, 2250),
}
