package healerpb

// TrailerMessage is the trailer of an answer to NodeHealer that has more to say than fits in
// NodeHealerResponse.message: paths and findings in full, in one line as well.
const TrailerMessage = "node-healer-message-bin"
