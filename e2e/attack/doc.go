// Package attack tries to get out of a box, into the host, at a secret or at the other boxes, by every way that somebody with
// root in a sandbox has, and holds that the gateway refuses, says so and goes on working.
package attack
