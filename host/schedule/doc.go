// Package schedule runs scheduled commands in boxes. It computes when a schedule is due, claims each run in the store
// before it begins, and delivers the result to a webhook.
//
// [Service] manages the schedules and answers API calls. Call [Service.Load] once the boxes are recovered, then
// [Service.Run], which returns when its context is done. Its [Scheduler] follows these rules:
//
//   - A due time is settled once: by a run, or by recording that it was skipped. The claim is stored before the run begins, so
//     a gateway that dies does not run it again.
//   - A schedule has one run at a time. A due time during a run is skipped.
//   - However many due times were missed while the gateway was down, or while the clock jumped ahead, one run follows.
//   - Times are compared by the wall clock. If the clock is set back, settled times in its future are discarded, so that the
//     schedule keeps running.
package schedule
