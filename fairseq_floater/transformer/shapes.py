"""Name the shapes and their sizes, for tools that need neither torch nor fairseq."""

#: fairseq's default of --max-source-positions and --max-target-positions
MAX_POSITIONS = 1024
#: Hugging Face's Marian: fairseq's Transformer in shape, with a few things computed differently
MARIAN = "floater_marian"
#: our architecture -> fairseq's
ARCHITECTURES = {
    "floater_transformer": "transformer",
    "floater_transformer_tiny": "transformer_tiny",
    "floater_transformer_iwslt_de_en": "transformer_iwslt_de_en",
    "floater_transformer_wmt_en_de": "transformer_wmt_en_de",
    "floater_transformer_vaswani_wmt_en_de_big": "transformer_vaswani_wmt_en_de_big",
    "floater_transformer_vaswani_wmt_en_fr_big": "transformer_vaswani_wmt_en_fr_big",
    "floater_transformer_wmt_en_de_big": "transformer_wmt_en_de_big",
    MARIAN: "transformer",
}
#: our encoder-only architecture -> fairseq's; the tiny one is fairseq's ``roberta`` with other sizes
ROBERTA_ARCHITECTURES = {
    "floater_roberta": "roberta",
    "floater_roberta_tiny": "roberta",
    "floater_roberta_base": "roberta_base",
    "floater_roberta_large": "roberta_large",
}
#: the options of channels, blocks, heads, and channels inside the feed-forward layer
ROBERTA_SHAPE = (
    "encoder_embed_dim",
    "encoder_layers",
    "encoder_attention_heads",
    "encoder_ffn_embed_dim",
)
#: our encoder-only architecture -> the values of these options
ROBERTA_SIZES = {
    "floater_roberta": (768, 12, 12, 3072),
    "floater_roberta_tiny": (64, 2, 2, 256),
    "floater_roberta_base": (768, 12, 12, 3072),
    "floater_roberta_large": (1024, 24, 16, 4096),
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
