// Package namespace works inside network namespaces: it makes and opens them, runs code in them, and reads and writes their
// sysctls.
package namespace
