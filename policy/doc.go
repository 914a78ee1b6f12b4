// Package policy says what a box may reach. A policy as written is a [Spec]; [Compile] makes it, with everything else that it
// depends on ([Options]), an immutable [Compiled]. Every stage of the gateway (kernel, DNS, proxy, dialler, public URLs) asks
// that one: [Compiled.Decide] whether a destination may be reached, [Compiled.Route] how a connection or a request may pass,
// held against what is known of its bytes, and [Compiled.Kernel] what nftables enforces by itself. [Live] is the policy in
// force for a box.
//
// Below it are what names, addresses and reasons are (policy/name), what requests rules are for (policy/match) and how documents
// are read (policy/document); above it, the forms that policies are written in (policy/dialect).
//
// The package is pure: it has no clock, disk, socket or log. Every zero value denies: an empty [Decision], an empty
// [Route], a nil *[Compiled], a [Live] in which nothing was stored.
package policy
