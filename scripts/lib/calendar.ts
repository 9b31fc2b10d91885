// Five cron fields as systemd's OnCalendar.
import { EXIT, Failure } from "./exit.js";

const WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/** One field: stars, lists, ranges and steps. `first` is the field's lowest value, where a step begins. */
function field(text: string, first: number, name: (n: string) => string): string {
  return text.split(",").map((part) => {
    const [, range = "", step] = /^(\*|\d+(?:-\d+)?)(?:\/(\d+))?$/.exec(part) ?? [];
    if (!range) throw new Failure(EXIT.config, `schedule: "${text}" is none of *, numbers, lists, ranges and steps: systemd gets no calendar of it`);
    if (range === "*") return step ? `${name(String(first))}/${step}` : "*";
    return range.split("-").map(name).join("..") + (step ? `/${step}` : "");
  }).join(",");
}

/** The calendar expression of a cron pattern. Throws a Failure for what systemd cannot say: a day of the month or of the week, whichever comes first. */
export function onCalendar(pattern: string): string {
  const [minute, hour, day, month, weekday] = pattern.split(/\s+/) as [string, string, string, string, string];
  if (day !== "*" && weekday !== "*") throw new Failure(EXIT.config, `schedule "${pattern}": systemd has no "this day of the month or that weekday": give one of the two`);
  const two = (n: string) => n.padStart(2, "0");
  const weekdays = weekday === "*" ? "" : `${field(weekday, 0, (n) => WEEKDAYS[Number(n)]!)} `;
  return `${weekdays}*-${field(month, 1, two)}-${field(day, 1, two)} ${field(hour, 0, two)}:${field(minute, 0, two)}:00`;
}
