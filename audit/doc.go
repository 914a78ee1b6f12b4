// Package audit carries one [Event] per decision from the part of the gateway that made it to the log, the streams of
// the admin API and the metrics. It imports policy alone, and every part of the gateway may import it for Event.
package audit
