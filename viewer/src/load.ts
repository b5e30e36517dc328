// Data that a page waits for.
import { useEffect, useState } from "preact/hooks";

/** What there is of a value that is asked for. While another is asked for, the one before it stays. */
export interface Loaded<T> {
  readonly value: T | null;
  readonly error: string;
  readonly isLoading: boolean;
}

/** Asks again when one of `what` changes; an answer that comes too late is dropped. */
export function useLoaded<T>(ask: () => Promise<T>, what: readonly unknown[]): Loaded<T> {
  const [answer, setAnswer] = useState<Answer<T>>({ value: null, error: "", of: null });
  useEffect(() => {
    let isWanted = true;
    ask().then(
      (value) => isWanted && setAnswer({ value, error: "", of: what }),
      (fault: unknown) => isWanted && setAnswer({ value: null, error: reason(fault), of: what }),
    );
    return () => {
      isWanted = false;
    };
  }, what);
  const isLoading = answer.of === null || answer.of.some((part, place) => part !== what[place]);
  return { value: answer.value, error: answer.error, isLoading };
}

interface Answer<T> {
  readonly value: T | null;
  readonly error: string;
  /** What it answers. */
  readonly of: readonly unknown[] | null;
}

/** An error as a sentence. */
export function reason(fault: unknown): string {
  return fault instanceof Error ? fault.message : String(fault);
}

/** What an object has under a key of its own: a participant may be called `__proto__` or `constructor`. */
export function own<T>(record: Readonly<Record<string, T>> | undefined, key: string): T | undefined {
  return record !== undefined && Object.hasOwn(record, key) ? record[key] : undefined;
}
