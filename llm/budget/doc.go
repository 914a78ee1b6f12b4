// Package budget keeps the accounts of model APIs: it adds up the tokens and dollars that boxes, the API keys that made them, and all boxes
// together have used, and refuses requests that could exceed a limit. It implements [llm.Meter].
//
// A request reserves the most that it may cost before it leaves, in every account that it counts for, and settles afterwards. Used and
// reserved amounts together never exceed a limit, however many requests run at the same time.
//
// The store is always ahead: an account of the store has the settled total and, as Ahead, a bound on the amount reserved and used since. A
// request leaves only when the store covers its reservation, so that a killed process has lost no charge. Its successor charges all of
// Ahead, as it cannot know whether it was used. The part of Ahead beyond the reservations of running requests, the headroom, lets most
// requests leave without a write; it is at most 1/32 of the smallest limit of the account.
package budget
