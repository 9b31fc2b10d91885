import { EXIT, type ExitCode } from "./lib/exit.js";
export async function demoCommand(): Promise<ExitCode> { return EXIT.failed; }
