// Package audit carries one [Event] per decision from the part of the gateway that made it to the log, the streams of
// the admin API and the metrics. It imports only policy, and every part of the gateway may import it for Event and
// [Recorder].
//
// The gateway has one [Log]. Its output is safe to print: text that a box chose is escaped when it is recorded, so that
// no control byte, terminal sequence or change of writing direction reaches a terminal or breaks a line.
package audit
