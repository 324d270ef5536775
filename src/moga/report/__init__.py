"""Records into pictures and one self-contained page. Nothing here imports torch, nor trains anything."""
