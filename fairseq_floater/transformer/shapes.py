"""Name the shapes and their sizes, for tools that need neither torch nor fairseq."""

#: our architecture -> fairseq's
ARCHITECTURES = {
    "floater_transformer": "transformer",
    "floater_transformer_tiny": "transformer_tiny",
    "floater_transformer_iwslt_de_en": "transformer_iwslt_de_en",
    "floater_transformer_wmt_en_de": "transformer_wmt_en_de",
    "floater_transformer_vaswani_wmt_en_de_big": "transformer_vaswani_wmt_en_de_big",
    "floater_transformer_vaswani_wmt_en_fr_big": "transformer_vaswani_wmt_en_fr_big",
    "floater_transformer_wmt_en_de_big": "transformer_wmt_en_de_big",
}
#: fairseq's architecture -> channels, blocks of either stack, and heads
SIZES = {
    "transformer": (512, 6, 8),
    "transformer_tiny": (64, 2, 2),
    "transformer_iwslt_de_en": (512, 6, 4),
    "transformer_wmt_en_de": (512, 6, 8),
    "transformer_vaswani_wmt_en_de_big": (1024, 6, 16),
    "transformer_vaswani_wmt_en_fr_big": (1024, 6, 16),
    "transformer_wmt_en_de_big": (1024, 6, 16),
}
