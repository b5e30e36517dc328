"""A backend of one's own: a Hugging Face model in this process, by `transformers.generate`."""

from __future__ import annotations

from importlib import import_module

from pydantic import BaseModel

from mac_runner import FinishReason, OwnBackend, Reply, Request, TokenCount


class Transformers(OwnBackend):
    """One reply at a time, in a thread. The same seed gives the same reply."""

    class Settings(BaseModel):
        """The model: a directory, or a name on the hub."""

        model: str
        context_tokens: int = 4096

    honours = frozenset({"temperature", "max_tokens", "top_p", "top_k", "seed"})
    packages = ("torch", "transformers")
    holds_memory = True

    def start(self) -> None:
        """Load the model."""
        self.torch, transformers = import_module("torch"), import_module("transformers")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.settings.model)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(self.settings.model)

    def generate(self, request: Request) -> Reply:
        """A plain function, so it runs in a thread."""
        messages = [{"role": each.role, "content": each.content} for each in request.prompt.messages]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        shown = self.tokenizer(text, return_tensors="pt", add_special_tokens=False)
        prompt, sampling = shown.input_ids.shape[1], request.sampling
        if prompt + sampling.max_tokens > self.settings.context_tokens:
            return Reply(text="", finish_reason=FinishReason.OVERFLOW)
        drawn = {"do_sample": sampling.temperature > 0}
        if drawn["do_sample"]:
            drawn |= {"temperature": sampling.temperature, "top_p": sampling.top_p or 1.0, "top_k": sampling.top_k or 0}
        self.torch.manual_seed(sampling.seed or 0)
        ids = self.model.generate(**shown, max_new_tokens=sampling.max_tokens, **drawn)[0, prompt:].tolist()
        is_whole = ids[-1] == self.tokenizer.eos_token_id
        return Reply(
            text=self.tokenizer.decode(ids, skip_special_tokens=True),
            finish_reason=FinishReason.STOP if is_whole else FinishReason.LENGTH,
            tokens=TokenCount(prompt=prompt, completion=len(ids)),
        )
