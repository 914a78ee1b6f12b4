// Package schedule runs what boxes do again and again: it knows when a schedule is due, claims each run in the store before
// it begins, and delivers the result to a webhook.
//
// [Service] keeps the schedules and answers the calls of the API. Call [Service.Load] once the boxes are known, then [Service.Run], which
// returns when its context ends. Below it a [Scheduler] follows these rules:
//
//   - A due time is settled once: by a run, or by noting that it was skipped. The claim is stored before the run begins, so
//     a gateway that dies does not run it again.
//   - One run of a schedule at a time. A due time during a run is skipped.
//   - However many due times were missed while the gateway was down, or while the clock jumped ahead, one run follows.
//   - Times are compared by the wall clock. One that was put back does not silence a schedule: what lies in its future is
//     forgotten.
package schedule
