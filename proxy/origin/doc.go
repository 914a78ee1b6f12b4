// Package origin makes and keeps connections to origin servers: to addresses that the policy in force allows, over TLS to servers
// that prove who they are, pooled for each box apart.
package origin
