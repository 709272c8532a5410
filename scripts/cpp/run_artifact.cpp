// Runs a TorchScript file or an AOTInductor package (.pt2) without Python and prints the first output, a line a sample:
// run_artifact exported/model.torchscript.pt images.pt
// Inputs are tensors as torch.save writes them, in the order of model.json.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

torch::Tensor read_tensor(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("can't read " + path);
  }
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return torch::jit::pickle_load(bytes).toTensor().contiguous();
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

torch::Tensor run(const std::string& artifact, const std::vector<torch::Tensor>& inputs) {
  if (ends_with(artifact, ".pt2")) {
    torch::inductor::AOTIModelPackageLoader loader(artifact);
    return loader.run(inputs).at(0);
  }
  auto net = torch::jit::load(artifact);
  const auto made = net.forward(std::vector<torch::jit::IValue>(inputs.begin(), inputs.end()));
  return made.isTensor() ? made.toTensor() : made.toTupleRef().elements().at(0).toTensor();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: run_artifact ARTIFACT INPUT.pt...\n";
    return 2;
  }
  try {
    const c10::InferenceMode no_gradients;
    std::vector<torch::Tensor> inputs;
    for (int index = 2; index < argc; ++index) {
      inputs.push_back(read_tensor(argv[index]));
    }
    const auto output = run(argv[1], inputs).flatten(1).to(torch::kFloat).contiguous();
    for (int64_t row = 0; row < output.size(0); ++row) {
      const float* values = output[row].const_data_ptr<float>();
      for (int64_t place = 0; place < output.size(1); ++place) {
        std::printf(place == 0 ? "%.7g" : " %.7g", values[place]);
      }
      std::printf("\n");
    }
  } catch (const std::exception& error) {
    std::cerr << "run_artifact: error: " << error.what() << "\n";
    return 2;
  }
  return 0;
}
