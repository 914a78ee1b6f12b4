// Package attack tries to reach the network, the host, a secret or another box from a box with root privileges. It
// tests that the gateway refuses, logs the refusal and keeps working.
package attack
