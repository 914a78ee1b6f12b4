// Package policy says what a box may reach. It parses a policy as written ([Spec]), compiles it together with the
// box's header rules into an immutable [Compiled], and answers every stage of the gateway (kernel, DNS, proxy, dialler,
// public URLs) from the one method [Compiled.Decide].
//
// The package is pure: it has no clock, disk, socket or log. Every zero value denies: an empty [Decision], a nil
// *[Compiled], a [Live] in which nothing was stored.
package policy
