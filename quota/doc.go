// Package quota accounts for the use of the gateway by each holder: an API key, a box, or a network of unauthenticated
// clients. A [Book] has the limits of each holder and of all of them together, and refuses with an [*Error] that contains
// the quota, its limit and the remedy.
//
// Connections, requests, commands and memory are taken and released:
//
//	release, err := book.Acquire(holder, quota.Connections, 1)
//	if err != nil {
//		return err // the API answers 429
//	}
//	defer release()
//
// A request that starts work takes through the [Scope] in its context, which lasts until both have ended:
//
//	if err := quota.ScopeOf(ctx).Acquire(quota.Memory, n); err != nil { … }
//
// Boxes, snapshots, URLs and the like are counted from state when one more is requested:
//
//	done, err := book.Reserve(holder, quota.Boxes, 1, func() int64 { return boxesOf(holder) })
//	if err != nil {
//		return err
//	}
//	defer done() // once the new box is counted, or has failed
//
// A rate is counted on each use: book.Rate(holder, quota.Certificates).
//
// Holders other than the operator (the admin keys) share three quarters of each total, so a quarter is always left for the
// operator. One holder gets at most half of that share, and little of its last quarter, so that a late holder still gets
// something.
package quota
