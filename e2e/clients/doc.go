// Package clients runs the programs and the SDK that people use, unchanged and without setup, and holds that they work as they
// would without a gateway.
package clients
