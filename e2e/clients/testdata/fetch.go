// Fetch prints the content of a URL. It has no configuration for a gateway.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	res, err := http.Get(os.Args[1])
	if err == nil {
		_, err = io.Copy(os.Stdout, res.Body)
		res.Body.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
