"""The WMT14 corpora: fetching the published archives and making parallel text of them."""
