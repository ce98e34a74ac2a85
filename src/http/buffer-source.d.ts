/** The declarations of `structured-headers` name this type of the DOM library, which is not loaded here. */
type BufferSource = ArrayBufferView | ArrayBuffer
