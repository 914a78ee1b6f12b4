// Package listen opens the sockets of a gateway, all of them or none ([Open]); keeps them for the service manager, which gives them to the
// next run; and passes them to another process, which takes them up ([Inherit]).
package listen
