// How a command ends: an exit code of the contract and one line that says what happened, where, and what to do next.

export const EXIT = { ok: 0, failed: 1, usage: 64, unreachable: 69, busy: 75, refused: 77, config: 78 } as const;
export type ExitCode = (typeof EXIT)[keyof typeof EXIT];

/** An error whose message is fit to print as it is. */
export class Failure extends Error {
  constructor(
    readonly exitCode: ExitCode,
    message: string,
  ) {
    super(message);
  }
}

const secrets = new Set<string>();

/** Has a secret blotted out of every message from now on. */
export const hide = (secret: string) => void secrets.add(secret);

/**
 * The text of an error as one line without secrets.
 * Control characters are folded to spaces, and the token is blotted out wherever a server or library may have quoted it.
 */
export function oneLine(message: string): string {
  const token = process.env.TURSO_AUTH_TOKEN?.trim();
  let safe = message;
  for (const secret of token ? [token, ...secrets] : secrets) safe = safe.replaceAll(secret, "***");
  // eslint-disable-next-line no-control-regex
  return safe.replace(/[\u0000-\u001f\u007f\u2028\u2029]+/g, " ").trim().slice(0, 1000);
}

/** Prints an error as one line on stderr. Returns the exit code it stands for; an unforeseen error is a failure. */
export function report(error: unknown): ExitCode {
  const failure = error instanceof Failure ? error : new Failure(EXIT.failed, `unexpected: ${String(error)}`);
  console.error(oneLine(failure.message));
  return failure.exitCode;
}
