// Package policy decides about the traffic of boxes. A policy as written is a [Spec]. [Compile] combines it with its other inputs
// ([Options]) to an immutable [Compiled], which every stage of the gateway uses (kernel, DNS, proxy, dialler, public URLs):
// [Compiled.Decide] decides about a destination, [Compiled.Route] about how a connection or request may pass, given the evidence
// about its bytes, and [Compiled.Kernel] is the part that nftables enforces. [Live] is the current policy of a box.
//
// It builds on policy/name (names, addresses, reasons), policy/match (conditions on requests) and policy/document (strict JSON).
// Package policy/dialect reads and writes policies.
//
// The package is pure: it has no clock, disk, socket or log. Every zero value denies: an empty [Decision], an empty
// [Route], a nil *[Compiled], a [Live] before the first Store.
package policy
