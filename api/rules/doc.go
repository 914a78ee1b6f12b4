// Package rules serves what a box may reach and what is set on its requests: network-policy and attach-headers.
package rules
