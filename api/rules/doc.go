// Package rules serves the policies and header rules of boxes: network-policy and attach-headers.
package rules
