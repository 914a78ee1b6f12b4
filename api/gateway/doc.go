// Package gateway serves the gateway-wide endpoints: health and state, keys, secrets, the store and CAs.
package gateway
