"""What a seat sees and how it answers: views, prompts, tools, replies."""
