// Package namespace works inside network namespaces: it creates and opens them, runs code in them, and reads and writes
// their sysctls.
package namespace
