// Package listen opens the sockets of a gateway, all of them or none ([Open]). It also hands them to the service manager,
// which keeps them for the next run, and passes them to a successor process, which picks them up with [Inherit].
package listen
