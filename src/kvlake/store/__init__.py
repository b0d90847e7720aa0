"""The only room where a decision becomes a move of bytes: keys + blocks -> blocks."""
