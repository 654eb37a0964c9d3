"""The names of the shapes, for tools that need no more of them."""

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
