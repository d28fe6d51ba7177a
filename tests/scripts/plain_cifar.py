"""Train the tutorial's small network on images of CIFAR's shape, and test it after each epoch."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset


class RandomImages(Dataset):
    """Random 32x32 colour images in memory, transformed one by one as torchvision would."""

    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
    std = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)

    def __init__(self, count, train):
        self.images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
        self.labels = torch.randint(0, 10, (count,))
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index].float() / 255
        if self.train:
            image = F.pad(image, (4, 4, 4, 4))
            top, left = torch.randint(0, 9, (2,)).tolist()
            image = image[:, top : top + 32, left : left + 32]
            if torch.rand(()) < 0.5:
                image = image.flip(-1)
        return (image - self.mean) / self.std, self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def make_loaders(workers):
    trainset = RandomImages(1920, train=True)
    testset = RandomImages(640, train=False)
    trainloader = DataLoader(trainset, batch_size=64, shuffle=True, num_workers=workers)
    testloader = DataLoader(testset, batch_size=64, shuffle=False, num_workers=workers)
    return trainloader, testloader


def evaluate(net, testloader, device):
    correct = 0
    total = 0
    net.eval()
    with torch.no_grad():
        for data in testloader:
            images, labels = data[0].to(device), data[1].to(device)
            outputs = net(images)
            _, predicted = torch.max(outputs.data, 1)
            total += labels.size(0)
            correct += (predicted == labels).sum().item()
    net.train()
    print(f"Accuracy of the network on the {total} test images: {100 * correct // total} %")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    trainloader, testloader = make_loaders(args.workers)

    net = Net().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=0.001, momentum=0.9)

    updates = 0
    for epoch in range(args.epochs):  # loop over the dataset multiple times
        running_loss = 0.0
        for i, data in enumerate(trainloader, 0):  # timer: data
            # get the inputs; data is a list of [inputs, labels]
            inputs, labels = data[0].to(device), data[1].to(device)  # timer: transfer

            # zero the parameter gradients
            optimizer.zero_grad()  # timer: optimizer

            # forward + backward + optimize
            outputs = net(inputs)  # timer: forward
            loss = criterion(outputs, labels)  # timer: forward
            loss.backward()  # timer: backward
            optimizer.step()  # timer: optimizer
            updates += 1

            # print statistics
            running_loss += loss.item()
            if i % 10 == 9:
                print(f"[{epoch + 1}, {i + 1:5d}] loss: {running_loss / 10:.3f}")
                running_loss = 0.0
        evaluate(net, testloader, device)

    print("Finished Training")
    print(f"updates={updates}")


if __name__ == "__main__":
    main()
