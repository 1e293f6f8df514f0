// SPDX-License-Identifier: Apache-2.0

package input

// "a b\nc\n" as packed by the tools of these names.
const (
	toolGzip  = "H4sIAAAAAAAAA0tUSOJK5gIAfDkWgQYAAAA="
	toolBzip2 = "QlpoOTFBWSZTWdMfxRUAAAHRAAAQQAA4ACAAMM0AwaAYnF3JFOFCQ0x/FFQ="
	toolXZ    = "/Td6WFoAAATm1rRGAgAhARYAAAB0L+WjAQAFYSBiCmMKAAAAWiL8pURj66gAAR4GwS+kHR+2830BAAAAAARZWg=="
	toolZstd  = "KLUv/QRYMQAAYSBiCmMKBc44Cg=="
	toolLZ4   = "BCJNGGRApwYAAIBhIGIKYwoAAAAAhsfmvA=="
)
