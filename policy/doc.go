// Package policy says what a box may reach. It parses a policy as written ([Spec]), compiles it together with the
// box's header rules into an immutable [Compiled], and answers every stage of the gateway (kernel, DNS, proxy, dialler,
// public URLs) from the one method [Compiled.Decide]. How a connection or a request may pass is [Compiled.Route]: what
// Decide says of where it goes, held against what is known of its bytes.
//
// The package is pure: it has no clock, disk, socket or log. Every zero value denies: an empty [Decision], an empty
// [Route], a nil *[Compiled], a [Live] in which nothing was stored.
package policy
