import { EXIT, type ExitCode } from "./lib/exit.js";
import type { Target } from "./lib/target.js";
export async function proofCommand(_target: Target, _wait: boolean): Promise<ExitCode> { return EXIT.failed; }
